{{/*
(context, configuration): fails unless what the chart reads of it has the right types; `devhost check` checks the rest. The
schema of the values cannot check text, nor options of a backend.
*/}}
{{- define "devhost.outline" -}}
{{- $config := index . 1 -}}
{{- $at := printf "%sconfig" (include "devhost.where" (index . 0)) -}}
{{- include "devhost.kinds" (list $at $config true (dict
  "version" "a number" "resources" "a list" "backends" "a map" "cdi" "a map" "deviceInfo" "a map" "dra" "a map" "labels" "a map")) -}}
{{- include "devhost.kinds" (list (printf "%s.dra" $at) $config.dra (hasKey $config "dra") (dict "driver" "text" "status" "true or false")) -}}
{{- range $key := list "version" "resources" -}}
  {{- if not (hasKey $config $key) -}}
    {{- fail (printf "%s: the key %s is missing: a configuration needs version: 1 and resources, which may be []" $at $key) -}}
  {{- end -}}
{{- end -}}
{{- $directory := dict "directory" "a path" "write" "true or false" -}}
{{- range $key := list "cdi" "deviceInfo" "labels" -}}
  {{- include "devhost.kinds" (list (printf "%s.%s" $at $key) (index $config $key) (hasKey $config $key) $directory) -}}
{{- end -}}
{{- range $index, $one := $config.resources -}}
  {{- $place := printf "%s.resources[%d]" $at $index -}}
  {{- include "devhost.kinds" (list $place $one true (dict "name" "text" "backend" "text" "program" "a map" "mps" "a map" "dra" "a map")) -}}
  {{- include "devhost.kinds" (list (printf "%s.dra" $place) $one.dra (hasKey $one "dra") (dict "driver" "text")) -}}
  {{- range $key := list "name" "backend" -}}
    {{- if not (hasKey $one $key) -}}{{- fail (printf "%s: the key %s is missing" $place $key) -}}{{- end -}}
  {{- end -}}
  {{- include "devhost.kinds" (list (printf "%s.program" $place) $one.program (hasKey $one "program") (dict "bitstream" "a path")) -}}
  {{- if and (hasKey $one "program") (not (hasKey $one.program "bitstream")) -}}
    {{- fail (printf "%s.program: the key bitstream is missing" $place) -}}
  {{- end -}}
  {{- include "devhost.kinds" (list (printf "%s.mps" $place) $one.mps (hasKey $one "mps") (dict
    "root" "a path or empty" "pipeDirectory" "a path or empty" "shmDirectory" "a path or empty")) -}}
{{- end -}}
{{- $options := dict
  "gpu" (dict "driverRoot" "a path" "devRoot" "a path or empty" "driverDirectory" "a path or empty" "cdiDirectories" "a list" "partitions" "a list" "mig" "text" "occupied" "text")
  "sriov" (dict "virtualFunctions" "a list")
  "udev" (dict "groups" "a list") -}}
{{- range $key, $one := default dict $config.backends -}}
  {{- include "devhost.kinds" (list (printf "%s.backends.%s" $at $key) $one true (default dict (index $options $key))) -}}
{{- end -}}
{{- range $index, $one := dig "gpu" "cdiDirectories" list (default dict $config.backends) -}}
  {{- include "devhost.kind" (list (printf "%s.backends.gpu.cdiDirectories[%d]" $at $index) $one "a path") -}}
{{- end -}}
{{- range $index, $group := dig "udev" "groups" list (default dict $config.backends) -}}
  {{- $place := printf "%s.backends.udev.groups[%d]" $at $index -}}
  {{- include "devhost.kinds" (list $place $group true (dict "mounts" "a list" "members" "a list")) -}}
  {{- range $key := list "mounts" "members" -}}
    {{- range $number, $one := index $group $key -}}
      {{- $part := printf "%s.%s[%d]" $place $key $number -}}
      {{- include "devhost.kinds" (list $part $one true (dict "path" "a path")) -}}
      {{- $chosen := and (eq $key "members") (hasKey $one "where") -}}
      {{- if not (or $chosen (hasKey $one "path")) -}}{{- fail (printf "%s: the key path is missing" $part) -}}{{- end -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- end -}}

{{/* (place, value, whether it has to be there, kinds by key): fails unless value is a map with such values. */}}
{{- define "devhost.kinds" -}}
{{- $place := index . 0 -}}
{{- $value := index . 1 -}}
{{- if or (index . 2) (not (kindIs "invalid" $value)) -}}
  {{- include "devhost.kind" (list $place $value "a map") -}}
  {{- range $key, $wanted := index . 3 -}}
    {{- if hasKey $value $key -}}
      {{- include "devhost.kind" (list (printf "%s.%s" $place $key) (get $value $key) $wanted) -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- end -}}

{{/* (place, value, kind): fails unless value is of this kind; paths are texts that begin with /. */}}
{{- define "devhost.kind" -}}
{{- $value := index . 1 -}}
{{- $wanted := index . 2 -}}
{{- $words := dict "map" "a map" "slice" "a list" "string" "text" "bool" "true or false" "float64" "a number" "int64" "a number" "int" "a number" "invalid" "nothing" -}}
{{- $found := get $words (kindOf $value) -}}
{{- $path := hasPrefix "a path" $wanted -}}
{{- if ne $found ($path | ternary "text" $wanted) -}}
  {{- fail (printf "%s must be %s, not %s" (index . 0) ($path | ternary "text" $wanted) $found) -}}
{{- else if and $path (not (hasPrefix "/" $value)) (not (and (eq $wanted "a path or empty") (empty $value))) -}}
  {{- fail (printf "%s must be an absolute path, not %q: begin it with /" (index . 0) $value) -}}
{{- end -}}
{{- end -}}
