{{/* "true" if a pod is replaced once its successor is ready; empty if before. */}}
{{- define "devhost.surge" -}}
{{- if and .Values.maxSurge (ne (default "RollingUpdate" .Values.updateStrategy) "OnDelete") -}}true{{- end -}}
{{- end -}}

{{/* "true" if two pods of a node may be in its network, where one port cannot be declared by both. */}}
{{- define "devhost.sharedPort" -}}
{{- if and (include "devhost.surge" .) (fromYaml (include "devhost.needs" .)).network -}}true{{- end -}}
{{- end -}}

{{/* Fails unless two pods of a node can overlap. */}}
{{- define "devhost.checkSurge" -}}
{{- if .Values.maxSurge -}}
  {{- $version := .Capabilities.KubeVersion.Version -}}
  {{- if semverCompare "<1.37.0-0" $version -}}
    {{- include "devhost.fail" (list $ (printf "maxSurge needs kubelets 1.37 or newer, and this cluster has %s: set it to 0" $version)) -}}
  {{- else if eq (default "RollingUpdate" .Values.updateStrategy) "OnDelete" -}}
    {{- include "devhost.fail" (list $ "maxSurge has no effect with updateStrategy OnDelete: omit one of them") -}}
  {{- else if (.Values.gpuOperator).namespace -}}
    {{- include "devhost.fail" (list $ "maxSurge needs separate directories for two pods of a node, but gpuOperator.namespace shares one: omit one of them") -}}
  {{- else if and (include "devhost.sharedPort" .) (.Values.podMonitor).enabled -}}
    {{- include "devhost.fail" (list $ "podMonitor.enabled needs a declared port, which two pods in the node's network cannot both have, as with maxSurge: use serviceMonitor, or set hostNetwork to false") -}}
  {{- end -}}
{{- end -}}
{{- end -}}
