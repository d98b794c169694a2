package message

import (
	"slices"
	"strings"

	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/personal"
	"github.com/agentmesh/agentmesh/node/wire"
)

// Masked replaces personal data.
const Masked = "[Masked]"

// Mask returns v as it may be shown. It masks the members that MaskFields names, at any depth. If MaskFields is empty,
// it masks the data of the listed types in every string (MS-39). A nil m masks nothing.
func (m *PIIMeta) Mask(v wire.Value) wire.Value {
	if m == nil {
		return v
	}
	return m.mask(v, "")
}

func (m *PIIMeta) mask(v wire.Value, key string) wire.Value {
	switch v.Kind() {
	case wire.Object:
		out := make([]wire.Member, 0, v.Len())
		for _, member := range v.Members() {
			if slices.Contains(m.MaskFields, member.Key) {
				member.Value = wire.Text(Masked)
			} else {
				member.Value = m.mask(member.Value, member.Key)
			}
			out = append(out, member)
		}
		return wire.Obj(out...)
	case wire.Array:
		var out []wire.Value
		for e := range v.Elems() {
			out = append(out, m.mask(e, key))
		}
		return wire.Arr(out...)
	case wire.String:
		s, _ := v.Str()
		if len(m.MaskFields) > 0 {
			return v
		}
		if text := maskText(s, m.Types); text != s {
			return wire.Text(text)
		}
		for _, t := range personal.LeafTypes(key, s) { // the member's name reveals the type
			if slices.Contains(m.Types, t) {
				return wire.Text(Masked)
			}
		}
	}
	return v
}

// maskText masks the findings of these types in a text. It masks a text with MaxFindings or more findings as a whole,
// because Scan may have left some out.
func maskText(s string, types []string) string {
	found := personal.Scan(s)
	if len(found) >= personal.MaxFindings {
		return Masked
	}
	slices.SortFunc(found, func(a, b personal.Finding) int { return a.Start - b.Start })
	var b strings.Builder
	at := 0
	for _, f := range found {
		if !slices.Contains(types, f.Type) || f.End <= at {
			continue
		}
		b.WriteString(s[at:max(at, f.Start)])
		b.WriteString(Masked)
		at = f.End
	}
	b.WriteString(s[at:])
	return b.String()
}
