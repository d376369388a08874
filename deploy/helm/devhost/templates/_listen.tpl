{{/* The argument of --listen. NODE_IP may have two addresses, HOST_IP is one of either family. */}}
{{- define "devhost.listen" -}}
{{- $address := default "" .Values.listen.address | replace "$(NODE_IP)" "[$(HOST_IP)]" -}}
{{- if contains ":" $address -}}
{{- $address = printf "[%s]" $address -}}
{{- end -}}
{{- printf "%s:%d" $address (int .Values.listen.port) -}}
{{- end -}}

{{/* Which host a probe asks: nothing (the pod's address) unless it listens on the node's loopback alone. */}}
{{- define "devhost.probeHost" -}}
{{- with .Values.listen.address -}}
{{- if include "devhost.loopback" . -}}{{- . -}}{{- end -}}
{{- end -}}
{{- end -}}

{{/* (address): "true" if only the machine itself reaches it, however it is written; else empty. */}}
{{- define "devhost.loopback" -}}
{{- if or (hasPrefix "127." .) (regexMatch "^[0:]*:0{0,3}1$" .) (regexMatch "(?i)^[0:]*:ffff:(127[.]|7f[0-9a-f]{2}:)" .) -}}true{{- end -}}
{{- end -}}

{{/* (address): "true" if it is one of IPv4 or IPv6; else empty. The schema has seen that it looks like either. */}}
{{- define "devhost.isAddress" -}}
{{- $octet := "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])" -}}
{{- if not (contains ":" .) -}}
{{- if regexMatch (printf "^%s([.]%s){3}$" $octet $octet) . -}}true{{- end -}}
{{- else -}}
{{- $address := regexReplaceAll (printf ":%s([.]%s){3}$" $octet $octet) . ":0:0" -}}
{{- $group := "[0-9A-Fa-f]{1,4}" -}}
{{- if regexMatch (printf "^(%s:){7}%s$" $group $group) $address -}}
true
{{- else if regexMatch (printf "^(%s(:%s)*)?::(%s(:%s)*)?$" $group $group $group $group) $address -}}
{{- if lt (len (regexFindAll $group $address -1)) 8 -}}true{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Fails if devhost could not be reached or could not listen. */}}
{{- define "devhost.checkListen" -}}
{{- $address := default "" .Values.listen.address -}}
{{- $network := (fromYaml (include "devhost.needs" .)).network -}}
{{- if not (or (has $address (list "" "$(NODE_IP)")) (include "devhost.isAddress" $address)) -}}
  {{- include "devhost.fail" (list $ (printf "listen.address %s is not an address" $address)) -}}
{{- end -}}
{{- if not $network -}}
  {{- if contains "$(NODE_IP)" $address -}}
    {{- include "devhost.fail" (list $ "listen.address $(NODE_IP) is the node's address, which the pod does not have: leave it empty, or set hostNetwork to true") -}}
  {{- else if include "devhost.loopback" $address -}}
    {{- include "devhost.fail" (list $ (printf "listen.address %s is the pod's loopback, which neither the kubelet nor Prometheus reaches: leave it empty, or set hostNetwork to true" $address)) -}}
  {{- else if not (or (empty $address) (eq $address "0.0.0.0") (regexMatch "^[0:]+$" $address)) -}}
    {{- include "devhost.fail" (list $ (printf "listen.address %s cannot be known in advance, because the pod has a separate network: leave it empty, or set hostNetwork to true" $address)) -}}
  {{- end -}}
{{- else if include "devhost.loopback" $address -}}
  {{- range $key := list "podMonitor" "serviceMonitor" "service" -}}
    {{- if (default dict (get $.Values $key)).enabled -}}
      {{- include "devhost.fail" (list $ (printf "listen.address %s cannot be reached from outside, but %s.enabled needs that: omit one of them" $address $key)) -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- end -}}
