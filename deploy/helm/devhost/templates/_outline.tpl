{{/*
Fails unless what the chart reads of a configuration is of the kind that the language wants; `devhost check` knows the
rest. The schema of the values cannot look into a text, nor below the options of a backend.
*/}}
{{- define "devhost.outline" -}}
{{- include "devhost.kinds" (list "config" . true (dict
  "version" "a number" "resources" "a list" "backends" "a map" "cdi" "a map" "deviceInfo" "a map" "labels" "a map")) -}}
{{- range $key := list "version" "resources" -}}
  {{- if not (hasKey $ $key) -}}
    {{- fail (printf "config: the key %s is missing: a configuration has version: 1 and resources, which may be []" $key) -}}
  {{- end -}}
{{- end -}}
{{- $directory := dict "directory" "text" "write" "true or false" -}}
{{- range $key := list "cdi" "deviceInfo" "labels" -}}
  {{- include "devhost.kinds" (list (printf "config.%s" $key) (index $ $key) (hasKey $ $key) $directory) -}}
{{- end -}}
{{- range $index, $one := .resources -}}
  {{- $place := printf "config.resources[%d]" $index -}}
  {{- include "devhost.kinds" (list $place $one true (dict "name" "text" "backend" "text" "program" "a map")) -}}
  {{- range $key := list "name" "backend" -}}
    {{- if not (hasKey $one $key) -}}{{- fail (printf "%s: the key %s is missing" $place $key) -}}{{- end -}}
  {{- end -}}
  {{- include "devhost.kinds" (list (printf "%s.program" $place) $one.program (hasKey $one "program") (dict "bitstream" "text")) -}}
{{- end -}}
{{- $options := dict
  "gpu" (dict "driverRoot" "text" "devRoot" "text" "driverDirectory" "text" "mpsPipeDirectory" "text" "mpsShmDirectory" "text" "cdiDirectories" "a list")
  "sriov" (dict "virtualFunctions" "a list")
  "udev" (dict "groups" "a list") -}}
{{- range $key, $one := default dict .backends -}}
  {{- include "devhost.kinds" (list (printf "config.backends.%s" $key) $one true (default dict (index $options $key))) -}}
{{- end -}}
{{- range $index, $group := dig "udev" "groups" list (default dict .backends) -}}
  {{- $place := printf "config.backends.udev.groups[%d]" $index -}}
  {{- include "devhost.kinds" (list $place $group true (dict "mounts" "a list" "members" "a list")) -}}
  {{- range $key := list "mounts" "members" -}}
    {{- range $number, $one := index $group $key -}}
      {{- include "devhost.kinds" (list (printf "%s.%s[%d]" $place $key $number) $one true (dict "path" "text")) -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- end -}}

{{/* (place, value, whether it has to be there, kinds by key): fails unless value is a map with such values. */}}
{{- define "devhost.kinds" -}}
{{- $place := index . 0 -}}
{{- $value := index . 1 -}}
{{- $words := dict "map" "a map" "slice" "a list" "string" "text" "bool" "true or false" "float64" "a number" "int64" "a number" "int" "a number" "invalid" "nothing" -}}
{{- $kind := get $words (kindOf $value) -}}
{{- if eq $kind "a map" -}}
  {{- range $key, $wanted := index . 3 -}}
    {{- if hasKey $value $key -}}
      {{- $found := get $words (kindOf (get $value $key)) -}}
      {{- if ne $found $wanted -}}
        {{- fail (printf "%s.%s must be %s, not %s" $place $key $wanted $found) -}}
      {{- end -}}
    {{- end -}}
  {{- end -}}
{{- else if or (index . 2) (ne $kind "nothing") -}}
  {{- fail (printf "%s must be a map, not %s" $place $kind) -}}
{{- end -}}
{{- end -}}
