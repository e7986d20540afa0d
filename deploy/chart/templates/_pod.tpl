{{- /* What the pods of both programs have in common; the argument is (dict "root" $ "part" .Values.extender "component" "extender"). */ -}}

{{- define "wholenode.podMetadata" -}}
labels:
  {{- include "wholenode.labels" . | nindent 2 }}
  {{- $labels := include "wholenode.labels" . | fromYaml }}
  {{- $component := .component }}
  {{- with .part.podLabels }}
  {{- range $key := keys . }}
  {{- if hasKey $labels $key }}
  {{- fail (printf "%s.podLabels: %s is set by the chart itself, which finds its pods by it: leave it out." $component $key) }}
  {{- end }}
  {{- end }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .part.podAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "wholenode.podSettings" -}}
serviceAccountName: {{ include "wholenode.fullname" .root }}-{{ .component }}
automountServiceAccountToken: true
enableServiceLinks: false
{{- /* Pods of ours must start while our extender is down, so they never ask for a scheduler that needs it. */}}
schedulerName: {{ .part.schedulerName | quote }}
{{- with .part.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
terminationGracePeriodSeconds: {{ .part.terminationGracePeriodSeconds }}
securityContext:
  {{- toYaml .root.Values.podSecurityContext | nindent 2 }}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .part.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .part.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "wholenode.selectorLabels" . | nindent 8 }}
{{- end -}}

{{- define "wholenode.containerSettings" -}}
image: {{ include "wholenode.image" .root | quote }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
securityContext:
  {{- toYaml .root.Values.securityContext | nindent 2 }}
resources:
  {{- toYaml .part.resources | nindent 2 }}
{{- end -}}

{{- define "wholenode.settings" -}}
{{- $component := .component }}
{{- range $name, $value := .part.settings }}
{{- if regexMatch "^(HOST|PORT|HEALTH_PORT|NAMESPACE|IDENTITY|LEASE_NAME|PACKING|TLS_(CERT|KEY|CLIENT_CA)_FILE)$" $name }}
{{- fail (printf "%s.settings.%s: the chart sets WHOLENODE_%s itself: leave it out." $component $name $name) }}
{{- end }}
- name: WHOLENODE_{{ $name }}
  {{- /* A number of a values file is a float: as text it would be 3.3e+07. */}}
  value: {{ ternary (toJson $value) (toString $value) (kindIs "float64" $value) | quote }}
{{- end }}
{{- end -}}

{{- define "wholenode.probes" -}}
livenessProbe:
  httpGet: {path: /healthz, port: {{ . }}}
  periodSeconds: 10
  timeoutSeconds: 3
  failureThreshold: 3
readinessProbe:
  httpGet: {path: /readyz, port: {{ . }}}
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: 2
startupProbe:
  httpGet: {path: /healthz, port: {{ . }}}
  periodSeconds: 1
  timeoutSeconds: 2
  failureThreshold: 60
{{- end -}}
