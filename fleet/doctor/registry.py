"""All checks by name: what each asks, what it needs to be read, and how a report is made of them."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from fleet.doctor import bypass, consent, locks, own, policy, preemption, quota, rates, scheduling, taints
from fleet.doctor.checkup import BASICS, Checkup
from fleet.doctor.findings import Code, Finding, Verdict, worst

FLEET: Final = ("nodes", "pods")
KUEUE: Final = ("clusterqueues", "resourceflavors", "workloads")


@dataclass(frozen=True, slots=True)
class Check:
    """One check. Without what it `needs` nothing can be said; without what it `wants` less.

    `of_files`: whether it can be made of a saved picture.
    """

    name: str
    asks: str
    run: Callable[[Checkup], tuple[Finding, ...]]
    needs: tuple[str, ...] = FLEET
    wants: tuple[str, ...] = ()
    of_files: bool = True


CHECKS: Final = (
    Check(
        "rate-limits",
        "Do clients' request limits hold pods up?",
        rates.check,
        (*FLEET, "gpupools"),
        ("deployments", "events"),
    ),
    Check(
        "placement-policy",
        "Are small pods spread, so that no node is whole?",
        policy.check,
        (*FLEET, "gpupools"),
        ("deployments",),
    ),
    Check(
        "quota-unit",
        "Does Kueue's quota count cards?",
        quota.check,
        (*FLEET, *KUEUE),
        ("cohorts", "localqueues", "configmaps"),
        of_files=False,
    ),
    Check(
        "preemption",
        "Does Kueue take quota back without making a node whole?",
        preemption.check,
        (*FLEET, "gpupools", *KUEUE, "admissionchecks"),
        of_files=False,
    ),
    Check(
        "scheduler-config",
        "Does kube-scheduler ask the extenders in the right order and way?",
        scheduling.check,
        FLEET,
        ("configmaps", "services"),
        of_files=False,
    ),
    Check(
        "taint-writers",
        "Does somebody else rewrite taints?",
        taints.check,
        ("nodes", "wholenodeclaims"),
        of_files=False,
    ),
    Check(
        "bypassing-pods", "Do pods get cards past the scheduler?", bypass.check, (*FLEET, "gpupools"), ("configmaps",)
    ),
    Check("node-locks", "Do HAMi's locks on nodes hold bindings up?", locks.check, FLEET, ("events",)),
    Check("agreements", "Have those agreed who hold cards where nodes may be vacated?", consent.check, BASICS),
    Check(
        "wholenode",
        "Are our own parts in order?",
        own.check,
        BASICS,
        (
            "deployments",
            "leases",
            "customresourcedefinitions",
            "mutatingadmissionpolicies",
            "admissionchecks",
            "clusterqueues",
        ),
        of_files=False,
    ),
)
NAMES: Final = tuple(one.name for one in CHECKS)


@dataclass(frozen=True, slots=True)
class Answer:
    """What one check found; `unread` is what it would have looked at too."""

    check: str
    findings: tuple[Finding, ...]
    unread: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        return worst(one.verdict for one in self.findings)


@dataclass(frozen=True, slots=True)
class Report:
    """All answers, and the names of checks that were left out because a file does not say enough for them."""

    answers: tuple[Answer, ...]
    skipped: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        return worst(one.verdict for one in self.answers)

    @property
    def exit_code(self) -> int:
        """1 if there is a problem, 2 if something could not be checked, else 0."""
        return {Verdict.PROBLEM: 1, Verdict.UNKNOWN: 2}.get(self.verdict, 0)


def examine(seen: Checkup, only: Collection[str] = ()) -> Report:
    """Make the checks, all or those named, in their order."""
    wanted = [one for one in CHECKS if not only or one.name in only]
    skipped = tuple(one.name for one in wanted if seen.saved and not one.of_files)
    return Report(tuple(_answer(one, seen) for one in wanted if one.name not in skipped), skipped)


def _answer(check: Check, seen: Checkup) -> Answer:
    lacking = [name for name in check.needs if name in seen.missing]
    unread = tuple(f"{name}: {seen.missing[name]}" for name in check.wants if name in seen.missing)
    if not lacking:
        return Answer(check.name, check.run(seen), unread)
    what = ", ".join(lacking)
    fix = "Run it with more rights: the chart's ClusterRole `<release>-doctor` has exactly those it needs."
    finding = Finding(
        Code.NOT_READ, Verdict.UNKNOWN, f"could not be checked without: {what}", {"missing": lacking}, fix
    )
    return Answer(check.name, (finding,), (*(f"{name}: {seen.missing[name]}" for name in lacking), *unread))
