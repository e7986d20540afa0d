{{- /* Names, labels and checks shared by all templates. */ -}}

{{- define "wholenode.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 48 | trimSuffix "-" -}}
{{- end -}}

{{- define "wholenode.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 48 | trimSuffix "-" -}}
{{- else if contains (include "wholenode.name" .) .Release.Name -}}
{{- .Release.Name | trunc 48 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "wholenode.name" .) | trunc 48 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- /* Labels of an object; the argument is (dict "root" $ "component" "extender"). */ -}}
{{- define "wholenode.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/part-of: wholenode
{{ include "wholenode.selectorLabels" . }}
{{- end -}}

{{- define "wholenode.selectorLabels" -}}
app.kubernetes.io/name: {{ include "wholenode.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "wholenode.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{- define "wholenode.extenderPort" -}}
{{- if .Values.extender.tls.secretName -}}9443{{- else -}}8080{{- end -}}
{{- end -}}

{{- define "wholenode.extenderScheme" -}}
{{- if .Values.extender.tls.secretName -}}https{{- else -}}http{{- end -}}
{{- end -}}

{{- /* The port that probes and Prometheus use: never one that asks for a client certificate. */ -}}
{{- define "wholenode.extenderProbePortName" -}}
{{- if .Values.extender.tls.secretName -}}health{{- else -}}http{{- end -}}
{{- end -}}

{{- define "wholenode.urlPrefix" -}}
{{- if .Values.scheduler.urlPrefix -}}
{{- .Values.scheduler.urlPrefix | trimSuffix "/" -}}
{{- else -}}
{{- printf "%s://%s-extender.%s.svc.%s:%s/v1" (include "wholenode.extenderScheme" .) (include "wholenode.fullname" .) .Release.Namespace .Values.clusterDomain (include "wholenode.extenderPort" .) -}}
{{- end -}}
{{- end -}}
