{{/*
Node groups. Each has a DaemonSet with the release's values and its own over them, on the nodes that it matches and no
earlier group does; all other nodes have the release's own DaemonSet. What a template sees as `.` is a context; that of a
DaemonSet has, besides Helm's keys,

 Group   the name of the group; empty for all other nodes
 Terms   the nodeSelectorTerms of its nodes, if there are groups
*/}}

{{/* (context, template): renders a template for each DaemonSet. */}}
{{- define "devhost.each" -}}
{{- $template := index . 1 -}}
{{- $found := dict -}}
{{- include "devhost.contexts" (list (index . 0) $found) -}}
{{- range $index, $context := $found.contexts -}}
{{- if $index }}
---
{{ end -}}
{{- include $template $context -}}
{{- end -}}
{{- end -}}

{{/* (context, map): puts the contexts of all DaemonSets into the map, as `contexts`: a template returns only text. */}}
{{- define "devhost.contexts" -}}
{{- $root := index . 0 -}}
{{- $found := index . 1 -}}
{{- $groups := default list $root.Values.nodeGroups -}}
{{- $contexts := list -}}
{{- $names := list -}}
{{- $others := list list -}}{{/* the nodes in no group so far: terms, each a list of conditions */}}
{{- range $group := $groups -}}
  {{- $context := pick $root "Values" "Release" "Chart" "Capabilities" -}}
  {{- $_ := set $context "Group" $group.name -}}
  {{- include "devhost.checkGroup" (list $context $group $names) -}}
  {{- $names = append $names $group.name -}}
  {{- $own := list -}}
  {{- $opposite := list -}}
  {{- range $group.match -}}
    {{- $own = append $own (include "devhost.condition" (list .key .operator .values)) -}}
    {{- $negated := get (dict "In" "NotIn" "NotIn" "In" "Exists" "DoesNotExist" "DoesNotExist" "Exists") .operator -}}
    {{- $opposite = append $opposite (include "devhost.condition" (list .key $negated .values)) -}}
  {{- end -}}
  {{- $own = uniq $own -}}
  {{- $opposite = uniq $opposite -}}
  {{- $terms := list -}}
  {{- $open := list -}}
  {{- $closed := list -}}{{/* terms with the opposite of a condition of this group: it has none of their nodes */}}
  {{- range $term := $others -}}
    {{- $excluded := false -}}
    {{- range $opposite -}}
      {{- if or (has . $term) (has . $own) -}}{{- $excluded = true -}}{{- end -}}
    {{- end -}}
    {{- if $excluded -}}
      {{- $closed = append $closed $term -}}
    {{- else -}}
      {{- $open = append $open $term -}}
      {{- $terms = append $terms (concat $own $term | uniq) -}}
    {{- end -}}
  {{- end -}}
  {{- if not $terms -}}
    {{- include "devhost.fail" (list $context "match selects no node: it contradicts itself, or an earlier group has all of its nodes: put this group before that one") -}}
  {{- end -}}
  {{- if ne (toString $group.enabled) "false" -}}
    {{- $values := deepCopy $root.Values -}}
    {{- if and (kindIs "string" $values.config) (kindIs "map" $group.config) -}}
      {{- $_ := set $values "config" (fromYaml (include "devhost.config" $root)) -}}
    {{- end -}}
    {{- include "devhost.over" (list $values (omit $group "name" "match" "enabled")) -}}
    {{- $_ := set $context "Values" $values -}}
    {{- $_ := set $context "Terms" $terms -}}
    {{- $contexts = append $contexts $context -}}
  {{- end -}}
  {{- $others = $closed -}}
  {{- range $term := $open -}}
    {{- range $opposite -}}
      {{- $new := append $term . | uniq -}}
      {{- $covered := false -}}{{/* whether a closed term has these nodes already */}}
      {{- range $one := $closed -}}
        {{- $within := true -}}
        {{- range $one -}}{{- if not (has . $new) -}}{{- $within = false -}}{{- end -}}{{- end -}}
        {{- if $within -}}{{- $covered = true -}}{{- end -}}
      {{- end -}}
      {{- if not $covered -}}{{- $others = append $others $new -}}{{- end -}}
    {{- end -}}
  {{- end -}}
  {{- if gt (len $others) 64 -}}
    {{- include "devhost.fail" (list $context (printf "the nodes in no group so far need %d nodeSelectorTerms, and 64 are allowed: use fewer conditions in match, or a label that combines them" (len $others))) -}}
  {{- end -}}
{{- end -}}
{{- $rest := $root -}}
{{- if $groups -}}
  {{- $rest = pick $root "Values" "Release" "Chart" "Capabilities" -}}
  {{- $_ := set $rest "Terms" $others -}}
{{- end -}}
{{- $_ := set $found "contexts" (prepend $contexts $rest) -}}
{{- end -}}

{{/* The nodes of a DaemonSet if there are groups, as in a nodeAffinity: those of the group that the release's affinity allows. */}}
{{- define "devhost.nodes" -}}
{{- $required := dig "nodeAffinity" "requiredDuringSchedulingIgnoredDuringExecution" "nodeSelectorTerms" list (default dict .Values.affinity) -}}
{{- $terms := list -}}
{{- range $allowed := $required | default (list dict) -}}
  {{- if or (not $required) $allowed.matchExpressions $allowed.matchFields -}}{{/* a term without conditions has no nodes */}}
    {{- range $term := $.Terms -}}
      {{- $conditions := default list $allowed.matchExpressions -}}
      {{- range $term -}}{{- $conditions = append $conditions (fromJson .) -}}{{- end -}}
      {{- $terms = append $terms (set (pick $allowed "matchFields") "matchExpressions" $conditions) -}}
    {{- end -}}
  {{- else -}}
    {{- $terms = append $terms dict -}}
  {{- end -}}
{{- end -}}
{{- if gt (len $terms) 64 -}}
  {{- include "devhost.fail" (list . (printf "affinity and groups make %d nodeSelectorTerms, and 64 are allowed: use fewer conditions in match, or a label that combines them" (len $terms))) -}}
{{- end -}}
{{- dict "requiredDuringSchedulingIgnoredDuringExecution" (dict "nodeSelectorTerms" $terms) | toYaml -}}
{{- end -}}

{{/* The labels of the pods of all DaemonSets, as JSON. */}}
{{- define "devhost.instances" -}}
{{- $found := dict -}}
{{- include "devhost.contexts" (list . $found) -}}
{{- $instances := list -}}
{{- range $found.contexts -}}{{- $instances = append $instances (include "devhost.instance" .) -}}{{- end -}}
{{- toJson $instances -}}
{{- end -}}

{{/* (key, operator, values): a condition on labels in one spelling. */}}
{{- define "devhost.condition" -}}
{{- $condition := dict "key" (index . 0) "operator" (index . 1) -}}
{{- with index . 2 -}}{{- $_ := set $condition "values" (uniq . | sortAlpha) -}}{{- end -}}
{{- toJson $condition -}}
{{- end -}}

{{/* (map, map): puts the second over the first, maps key by key; null removes a key. */}}
{{- define "devhost.over" -}}
{{- $under := index . 0 -}}
{{- range $key, $value := index . 1 -}}
  {{- if kindIs "invalid" $value -}}
    {{- $_ := unset $under $key -}}
  {{- else if and (kindIs "map" $value) (kindIs "map" (get $under $key)) -}}
    {{- include "devhost.over" (list (get $under $key) $value) -}}
  {{- else -}}
    {{- $_ := set $under $key $value -}}
  {{- end -}}
{{- end -}}
{{- end -}}

{{/* (context of the group, group, names of earlier groups): fails if the group cannot be meant. */}}
{{- define "devhost.checkGroup" -}}
{{- $context := index . 0 -}}
{{- $group := index . 1 -}}
{{- $name := $group.name -}}
{{- if has $name (index . 2) -}}
  {{- include "devhost.fail" (list $context "two groups have this name: rename one of them") -}}
{{- else if or (eq $name "dashboard") (eq $name "release") (hasSuffix "-release" $name) -}}
  {{- include "devhost.fail" (list $context "the chart uses this name for another object: rename the group") -}}
{{- end -}}
{{- $object := include "devhost.daemonset" $context -}}
{{- if gt (len $object) 54 -}}
  {{- include "devhost.fail" (list $context (printf "its DaemonSet would be called %s, with %d characters, and 54 are allowed: use a shorter name, or fullnameOverride" $object (len $object))) -}}
{{- end -}}
{{- $instance := include "devhost.instance" $context -}}
{{- if gt (len $instance) 63 -}}
  {{- include "devhost.fail" (list $context (printf "the label %s has %d characters, and Kubernetes allows 63: use a shorter name, or a shorter one for the release" $instance (len $instance))) -}}
{{- end -}}
{{- range $index, $one := $group.match -}}
  {{- $takes := has $one.operator (list "In" "NotIn") -}}
  {{- if and $takes (not $one.values) -}}
    {{- include "devhost.fail" (list $context (printf "match[%d]: %s needs values: add them, or use Exists" $index $one.operator)) -}}
  {{- else if and (not $takes) (hasKey $one "values") -}}
    {{- include "devhost.fail" (list $context (printf "match[%d]: %s takes no values: omit them, or use In" $index $one.operator)) -}}
  {{- end -}}
{{- end -}}
{{- $given := or (hasKey $group "config") (hasKey $group "configFiles") -}}
{{- if and $given $context.Values.existingConfigMap (not (hasKey $group "existingConfigMap")) -}}
  {{- include "devhost.fail" (list $context (printf "its configuration has no effect, because existingConfigMap of the release is %s: add existingConfigMap: \"\" to the group" $context.Values.existingConfigMap)) -}}
{{- end -}}
{{- end -}}

{{/* (context, text): fails with the text, and with the name of the group that it is about. */}}
{{- define "devhost.fail" -}}
{{- fail (printf "%s%s" (include "devhost.where" (index . 0)) (index . 1)) -}}
{{- end -}}

{{/* Where a value is, as the beginning of an error. */}}
{{- define "devhost.where" -}}
{{- with .Group -}}node group {{ . }}: {{ end -}}
{{- end -}}
