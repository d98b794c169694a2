package door

import (
	"bytes"
	"slices"

	"github.com/agentmesh/agentmesh/node/wire"
)

// parts are artifacts that were sent in pieces, each as far as it was sent.
type parts []part

type part struct {
	artifact wire.Value
	complete bool // its last piece was sent
}

func (p parts) find(artifact wire.Value) int {
	id := artifact.GetStr("artifactId")
	return slices.IndexFunc(p, func(old part) bool { return old.artifact.GetStr("artifactId") == id })
}

// add returns p with the artifact of an update. Any other event changes nothing.
func (p parts) add(event wire.Value) parts {
	update, ok := event.Get("artifactUpdate")
	if !ok {
		return p
	}
	more, _ := member(update, "append").Boolean()
	last, _ := member(update, "lastChunk").Boolean()
	next := part{member(update, "artifact"), last}
	i := p.find(next.artifact)
	if i < 0 {
		return append(p[:len(p):len(p)], next)
	}
	if more {
		list := slices.Collect(member(p[i].artifact, "parts").Elems())
		for piece := range member(next.artifact, "parts").Elems() {
			list = joinText(list, piece)
		}
		next.artifact = p[i].artifact.With("parts", wire.Arr(list...))
	}
	p = slices.Clone(p)
	p[i] = next
	return p
}

// joinText adds a part to a list. A text continues the text before it, so that an artifact that is sent word by word
// has one part.
func joinText(list []wire.Value, piece wire.Value) []wire.Value {
	text, isText := piece.Get("text")
	if n := len(list); n > 0 && isText && list[n-1].Len() == 1 && piece.Len() == 1 {
		if before, ok := list[n-1].Get("text"); ok {
			start, _ := before.Str()
			rest, _ := text.Str()
			return append(list[:n-1:n-1], wire.Obj(wire.TextField("text", start+rest)))
		}
	}
	return append(list, piece)
}

// repeats reports whether an update has an artifact that was sent completely, with the same content.
func (p parts) repeats(event wire.Value) bool {
	artifact := member(member(event, "artifactUpdate"), "artifact")
	i := p.find(artifact)
	return i >= 0 && p[i].complete && bytes.Equal(p.contentOf(i), parts{{artifact: artifact}}.contentOf(0))
}

// contentOf returns the parts of an artifact, with adjacent texts joined.
func (p parts) contentOf(i int) []byte {
	var list []wire.Value
	for piece := range member(p[i].artifact, "parts").Elems() {
		list = joinText(list, piece)
	}
	return wire.Arr(list...).JSON()
}

// addTo returns a task with the artifacts that were sent, in place of earlier ones with the same ids.
func (p parts) addTo(task wire.Value) wire.Value {
	if len(p) == 0 {
		return task
	}
	list := slices.Collect(member(task, "artifacts").Elems())
	for _, sent := range p {
		id := sent.artifact.GetStr("artifactId")
		list = append(slices.DeleteFunc(list, func(v wire.Value) bool { return v.GetStr("artifactId") == id }), sent.artifact)
	}
	return task.With("artifacts", wire.Arr(list...))
}

// with returns p with the artifacts of a task that were not sent in pieces.
func (p parts) with(task wire.Value) parts {
	for artifact := range member(task, "artifacts").Elems() {
		if p.find(artifact) < 0 {
			p = append(p[:len(p):len(p)], part{artifact, true})
		}
	}
	return p
}
