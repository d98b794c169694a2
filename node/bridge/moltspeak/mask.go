package moltspeak

import (
	"slices"
	"strings"

	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/personal"
	"github.com/agentmesh/agentmesh/node/wire"
)

// masked stands where personal data stood.
const masked = "[masked]"

// Mask returns v as it may be shown: members named in fields are masked at any depth; without fields, what the types
// name in every string (MS-39).
func Mask(v wire.Value, m *PIIMeta) wire.Value {
	if m == nil {
		return v
	}
	if len(m.MaskFields) > 0 {
		return maskFields(v, m.MaskFields)
	}
	return maskLeaves(v, "", m.Types)
}

func maskFields(v wire.Value, fields []string) wire.Value {
	switch v.Kind() {
	case wire.Object:
		out := make([]wire.Member, 0, v.Len())
		for _, m := range v.Members() {
			if slices.Contains(fields, m.Key) {
				m.Value = wire.Text(masked)
			} else {
				m.Value = maskFields(m.Value, fields)
			}
			out = append(out, m)
		}
		return wire.Obj(out...)
	case wire.Array:
		var out []wire.Value
		for e := range v.Elems() {
			out = append(out, maskFields(e, fields))
		}
		return wire.Arr(out...)
	}
	return v
}

func maskLeaves(v wire.Value, key string, types []string) wire.Value {
	switch v.Kind() {
	case wire.Object:
		out := make([]wire.Member, 0, v.Len())
		for _, m := range v.Members() {
			out = append(out, wire.Member{Key: m.Key, Value: maskLeaves(m.Value, m.Key, types)})
		}
		return wire.Obj(out...)
	case wire.Array:
		var out []wire.Value
		for e := range v.Elems() {
			out = append(out, maskLeaves(e, key, types))
		}
		return wire.Arr(out...)
	case wire.String:
		s, _ := v.Str()
		text := maskText(s, types)
		if text != s {
			return wire.Text(text)
		}
		for _, t := range personal.LeafTypes(key, s) { // the member's name says what it is
			if slices.Contains(types, t) {
				return wire.Text(masked)
			}
		}
	}
	return v
}

// maskText masks the findings of these types in a text, all of a text with more of them than are kept.
func maskText(s string, types []string) string {
	found := personal.Scan(s)
	if len(found) >= personal.MaxFindings {
		return masked
	}
	slices.SortFunc(found, func(a, b personal.Finding) int { return a.Start - b.Start })
	var b strings.Builder
	at := 0
	for _, f := range found {
		if !slices.Contains(types, f.Type) || f.End <= at {
			continue
		}
		b.WriteString(s[at:max(at, f.Start)])
		b.WriteString(masked)
		at = f.End
	}
	b.WriteString(s[at:])
	return b.String()
}
