{{/* The kubelet's directories for Dynamic Resource Allocation. */}}

{{- define "devhost.kubeletRoot" -}}
{{- clean .Values.kubelet.root -}}
{{- end -}}

{{- define "devhost.pluginsRegistry" -}}
{{- printf "%s/plugins_registry" (include "devhost.kubeletRoot" .) -}}
{{- end -}}

{{- define "devhost.pluginsDirectory" -}}
{{- printf "%s/plugins" (include "devhost.kubeletRoot" .) -}}
{{- end -}}

{{/* (texts): the end of a CEL expression that is true for one of them. */}}
{{- define "devhost.oneOf" -}}
{{- if eq (len .) 1 -}}== {{ first . | quote }}{{- else -}}in {{ toJson . }}{{- end -}}
{{- end -}}

{{/* (context, configuration): the DRA drivers as JSON: that of the file, those of its entries, and those of the values. */}}
{{- define "devhost.draDrivers" -}}
{{- $values := default dict (index . 0).Values.dra -}}
{{- $drivers := list (default (dig "dra" "driver" "" (index . 1)) $values.driver) -}}
{{- range (index . 1).resources -}}
  {{- with (default dict .dra).driver -}}{{- $drivers = append $drivers . -}}{{- end -}}
{{- end -}}
{{- concat $drivers (default list $values.drivers) | uniq | toJson -}}
{{- end -}}

{{/* Fails unless the values, the configuration and the cluster agree on Dynamic Resource Allocation. */}}
{{- define "devhost.checkDra" -}}
{{- $values := default dict .Values.dra -}}
{{- $config := fromYaml (include "devhost.config" .) -}}
{{- $configured := dig "dra" "driver" "" $config -}}
{{- $driver := default $configured $values.driver -}}
{{- if $values.enabled -}}
  {{- $version := .Capabilities.KubeVersion.Version -}}
  {{- if semverCompare "<1.34.0-0" $version -}}
    {{- include "devhost.fail" (list $ (printf "dra.enabled needs Kubernetes 1.34 or newer, and this cluster has %s: set it to false" $version)) -}}
  {{- else if not $driver -}}
    {{- if .Values.existingConfigMap -}}
      {{- include "devhost.fail" (list $ (printf "dra.driver is missing: set it to dra.driver of the configuration in %s, which this chart does not read" .Values.existingConfigMap)) -}}
    {{- end -}}
    {{- include "devhost.fail" (list $ "dra.enabled is true, but config has no dra.driver: add dra: {driver: devhost.example.com} with a domain of yours, or set dra.enabled to false") -}}
  {{- else if and $configured (ne $configured $driver) -}}
    {{- include "devhost.fail" (list $ (printf "dra.driver is %s, but config.dra.driver is %s: omit the former" $driver $configured)) -}}
  {{- else if and (not .Values.existingConfigMap) (not $configured) -}}
    {{- include "devhost.fail" (list $ (printf "dra.driver is %s, but config has no dra.driver: add dra: {driver: %s} to config" $driver $driver)) -}}
  {{- end -}}
  {{- $tag := eq (include "devhost.surge" .) "true" | ternary "-123456" "" -}}
  {{- $plugins := include "devhost.pluginsDirectory" . -}}
  {{- $registry := include "devhost.pluginsRegistry" . -}}
  {{- range $one := fromJsonArray (include "devhost.draDrivers" (list . $config)) -}}
    {{- if not (regexMatch "^[a-z0-9]([a-z0-9-]*[a-z0-9])?([.][a-z0-9]([a-z0-9-]*[a-z0-9])?)*$" $one) -}}
      {{- include "devhost.fail" (list $ (printf "config.dra.driver %q is not a DNS subdomain: use lower-case letters, digits, - and ." $one)) -}}
    {{- else if gt (len $one) 63 -}}
      {{- include "devhost.fail" (list $ (printf "config.dra.driver %s has %d characters, and Kubernetes allows 63: choose a shorter one" $one (len $one))) -}}
    {{- end -}}
    {{- range $socket := list
      (printf "%s/%s/dra%s.sock" $plugins $one $tag)
      (printf "%s/%s%s-reg.sock" $registry $one $tag) -}}
      {{- if gt (len $socket) 107 -}}
        {{- include "devhost.fail" (list $ (printf "dra: the socket %s has %d characters, and Linux allows 107: choose a shorter dra.driver in the configuration" $socket (len $socket))) -}}
      {{- end -}}
    {{- end -}}
  {{- end -}}
  {{- if eq (toString .Values.host.cdi) "false" -}}
    {{- include "devhost.fail" (list $ "dra.enabled needs the CDI directory, but host.cdi is false: omit it") -}}
  {{- else if and (.Values.networkPolicy).enabled (not .Values.networkPolicy.apiServerPorts) -}}
    {{- include "devhost.fail" (list $ "networkPolicy.apiServerPorts is empty, so devhost cannot reach the API server, but dra.enabled needs that: add its ports, such as 443") -}}
  {{- end -}}
{{- else if hasKey $config "dra" -}}
  {{- include "devhost.fail" (list $ "config has dra, but dra.enabled is false, so that devhost gets no access to the API server: set dra.enabled to true, or remove dra from config") -}}
{{- end -}}
{{- end -}}
