"""A StatefulSet or Deployment, by the scale subresource: all that the scaler may read or change.

Through Kubernetes' own client, with the rights of the pod that it runs in, or else those of the
kubeconfig at hand. Never lists or deletes pods: the workload's controller starts and ends them.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, Literal

from syncline.scaling.core import Observed
from syncline_proto.errors import ConfigError, Forbidden, ProcessFailed, SynclineError, Unreachable

if TYPE_CHECKING:
    from kubernetes.client import AppsV1Api

CALL_S = 15.0
"""One call to the API server."""
NO_SCALE = (
    "The cluster's API server answers with something that is no scale; "
    "whatever stands before it may have answered in its place."
)
MERGE = "application/merge-patch+json"

Kind = Literal["statefulset", "deployment"]
ORDINAL, HASHES = r"-\d+", r"-[a-z0-9]+-[a-z0-9]{5}"
"""What Kubernetes adds to a workload's name in its pods', which are the replicas' names."""


def api() -> AppsV1Api:
    """Return a client of the API server that is this pod's, or that the kubeconfig names.

    Raises:
        ConfigError: the client is not installed, or nothing says which server.
    """
    try:
        from kubernetes import client, config
    except ImportError:
        raise ConfigError(
            "--kubernetes needs Kubernetes' client: pip install 'syncline[kubernetes]'."
        ) from None
    try:
        named = os.environ.get("KUBECONFIG")
        if "KUBERNETES_SERVICE_HOST" in os.environ and not named:
            config.load_incluster_config()
        else:
            config.load_kube_config(named)
    except config.ConfigException as error:
        why = str(error).strip().rstrip(".")
        raise ConfigError(f"--kubernetes: no cluster is named here ({why}).") from None
    # What fails is asked again with the next look, so that it is told in the meantime.
    made = client.Configuration.get_default_copy()
    made.retries = 0
    return client.AppsV1Api(client.ApiClient(made))


class Kubernetes:
    """One workload."""

    def __init__(self, apps: AppsV1Api, namespace: str, kind: Kind, name: str) -> None:
        self._apps, self._namespace, self._kind, self._name = apps, namespace, kind, name
        self._pods = re.compile(re.escape(name) + (ORDINAL if kind == "statefulset" else HASHES))

    def __str__(self) -> str:
        return f"{self._kind}/{self._name}"

    def look(self) -> Observed:
        """Read the workload's scale.

        Raises:
            ConfigError, Forbidden: there is no such workload, or we may not look at it.
            Unreachable, ProcessFailed: the API server does not answer, or refuses.
        """
        scale = self._call("read")
        leave = "The highest numbers leave" if self._kind == "statefulset" else "Some leave"
        return Observed(
            replicas=scale.spec.replicas or 0,
            is_own=lambda name: self._pods.fullmatch(name) is not None,
            starts_again=True,
            who_leaves=f"{leave}, each within its terminationGracePeriodSeconds.",
        )

    def scale(self, replicas: int) -> None:
        """Set the number of replicas.

        Raises:
            SynclineError: as ``look``.
        """
        self._call("patch", {"spec": {"replicas": replicas}}, _content_type=MERGE)

    def _call(self, verb: Literal["read", "patch"], *body: object, **how: Any) -> Any:
        from kubernetes.client.exceptions import ApiException
        from urllib3.exceptions import HTTPError

        kind = "stateful_set" if self._kind == "statefulset" else "deployment"
        call = getattr(self._apps, f"{verb}_namespaced_{kind}_scale")
        try:
            scale = call(self._name, self._namespace, *body, _request_timeout=CALL_S, **how)
        except ApiException as refused:
            raise self._refused(refused.status or 0, refused.reason) from None
        except (HTTPError, OSError) as away:
            what = type(away).__name__
            raise Unreachable(f"The cluster's API server does not answer ({what}).") from None
        except ValueError:  # the client's word for what it cannot read
            raise Unreachable(NO_SCALE) from None
        if scale is None or scale.spec is None:
            raise Unreachable(NO_SCALE)
        return scale

    def _refused(self, status: int, reason: object) -> SynclineError:
        where = f"{self} in the namespace {self._namespace}"
        if status == 404:
            return ConfigError(f"There is no {where}.")
        if status in (401, 403):
            return Forbidden(
                f"The API server does not let us scale {where}; see the Role in k8s/scaler."
            )
        if status == 429 or status >= 500:
            return Unreachable(f"The cluster's API server answers {status} {reason}.")
        return ProcessFailed(f"The API server refuses to scale {where}: {status} {reason}.")
