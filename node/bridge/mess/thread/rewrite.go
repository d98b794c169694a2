package thread

import (
	"slices"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
)

// MapContent returns a copy of the block in which the value of each content entry {kind: value} is replaced by what
// convert returns for it. Other content entries stay as they are.
func (b Block) MapContent(convert func(kind string, v wire.Value) (wire.Value, error)) (Block, error) {
	out := slices.Clone(b)
	for i, e := range out {
		for _, key := range []string{"context", "content"} {
			list, ok := e.Body.Get(key)
			if !ok || list.Kind() != wire.Array {
				continue
			}
			elems := slices.Collect(list.Elems())
			for n, c := range elems {
				if c.Kind() != wire.Object || c.Len() != 1 {
					continue
				}
				kind := c.Members()[0].Key
				v, err := convert(kind, c.At(0))
				if err != nil {
					return nil, err
				}
				elems[n] = wire.Obj(wire.Field(kind, v))
			}
			e.Body = e.Body.With(key, wire.Arr(elems...))
		}
		out[i] = e
	}
	return out, nil
}

// IsBareStatus reports whether a status has nothing besides its code, its references and its executor.
func (e Entry) IsBareStatus() bool {
	return !slices.ContainsFunc(e.Body.Members(), func(m wire.Member) bool { return m.Key != "re" && m.Key != "code" && m.Key != "executor" })
}

// Has reports whether the block has an entry of this type.
func (b Block) Has(entryType string) bool {
	return slices.ContainsFunc(b, func(e Entry) bool { return e.Type == entryType })
}

// AfterBlock returns the code of the last status in the block, or c if the block has no status.
func (c Code) AfterBlock(b Block) Code {
	for _, e := range b {
		if code, ok := ParseCode(e.Body.GetStr("code")); ok && e.Type == "status" {
			c = code
		}
	}
	return c
}

// HasOnly reports whether every entry of the block is a version or has one of these types.
func (b Block) HasOnly(types ...string) bool {
	return !slices.ContainsFunc(b, func(e Entry) bool { return e.Type != "v" && !slices.Contains(types, e.Type) })
}

// PointAtLast returns the block with entries that refer to "last" instead of the foreign thread ref. Within the
// conversation of that thread, "last" means the same thread. In our exchange, ref may be the name of a different
// thread.
func (b Block) PointAtLast(ref string) Block {
	out := slices.Clone(b)
	for i, e := range out {
		if e.Body.Kind() == wire.Object && FirstRef(e.Body) == ref {
			out[i].Body = e.Body.With("re", wire.Text("last"))
		}
	}
	return out
}

// Successor returns the thread to which the sender's exchange delegated its thread, or "".
func (e Entry) Successor() string {
	if code, _ := ParseCode(e.Body.GetStr("code")); e.Type != "status" || code != Delegated {
		return ""
	}
	return e.Body.GetStr("ref")
}

// Block returns the entries of the message, or none if they cannot be read.
func (m Message) Block() Block {
	b, _ := FromTree(m.Mess)
	return b
}

// HasResponse reports whether the message has a response.
func (m Message) HasResponse() bool { return m.Block().Has("response") }

// Text returns the text in a block. complete is false if a response contains something that is not text.
func (b Block) Text() (text string, complete bool) {
	var out []string
	add := func(s string) {
		if s = strings.TrimSpace(s); s != "" {
			out = append(out, s)
		}
	}
	complete = true
	for _, e := range b {
		add(e.Body.GetStr("message"))
		switch e.Type {
		case "status":
			reason, _ := e.Body.Get("reason")
			add(e.Body.GetStr("reason"))
			add(reason.GetStr("detail"))
			add(e.Body.GetStr("action"))
			questions, _ := e.Body.Get("questions")
			for q := range questions.Elems() {
				add(q.GetStr("question"))
			}
		case "cancel":
			add(e.Body.GetStr("reason"))
		case "response":
			content, _ := e.Body.Get("content")
			for c := range content.Elems() {
				s, isText := c.Str()
				if !isText {
					s = c.GetStr("text")
				}
				if s == "" {
					s, complete = string(c.JSON()), false
				}
				add(s)
			}
			add(e.Body.GetStr("notes"))
		}
	}
	return strings.Join(out, "\n"), complete
}

// HasAnswer reports whether a block answers a question or a needs_confirmation.
func (b Block) HasAnswer() bool {
	return slices.ContainsFunc(b, func(e Entry) bool { return e.Type == "answer" || e.Type == "reply" && !e.IsDecision() })
}

// CancelAsStatus returns the block with the status "cancelled" in place of each cancel. It is for blocks of a peer to
// which we sent the thread. To our exchange, such a peer is the executor, and only the requester may send a cancel.
func (b Block) CancelAsStatus() Block {
	out := slices.Clone(b)
	for i, e := range out {
		if e.Type == "cancel" {
			out[i] = Entry{Type: "status", Body: e.Body.With("code", wire.Text(string(Cancelled)))}
		}
	}
	return out
}

// NeedsApproval reports whether a request in the block needs the owner's approval (see [Request.NeedsApproval]).
func (b Block) NeedsApproval() bool {
	return slices.ContainsFunc(b, func(e Entry) bool {
		r, err := ReadRequest(e.Body, "", time.Now())
		return e.Type == "request" && err == nil && r.NeedsApproval()
	})
}

// PointAt returns the block with every entry about a thread referring to ref. In a PATCH, such an entry may come
// without a reference (MESS-20).
func (b Block) PointAt(ref string) Block {
	out := slices.Clone(b)
	for i, e := range out {
		_, hasRef := e.Body.Get("re")
		isAboutThread := hasRef || slices.Contains([]string{"status", "response", "reply", "answer", "cancel"}, e.Type)
		if isAboutThread && e.Body.Kind() == wire.Object {
			out[i].Body = e.Body.With("re", wire.Text(ref))
		}
	}
	return out
}

// ForExchange returns the block for another exchange that knows the thread as ref. A decision about a suggestion of
// that exchange continues to refer to the suggestion by its id.
func (b Block) ForExchange(ref string) Block {
	out := b.PointAt(ref)
	for i, e := range b {
		if e.IsDecision() {
			out[i] = e
		}
	}
	return out
}

// SplitAnswers returns the block with a separate answer entry for each question of a reply, if the id of one of these
// questions is a whole number. In a reply the ids are names of members, and no message of the mesh may have a member
// whose name is a number.
func (b Block) SplitAnswers() Block {
	var out Block
	for _, e := range b {
		answers, _ := e.Body.Get("answers")
		if e.Type != "reply" || !slices.ContainsFunc(answers.Members(), func(m wire.Member) bool { return strings.Trim(m.Key, "0123456789") == "" }) {
			out = append(out, e)
			continue
		}
		for _, m := range answers.Members() {
			out = append(out, Entry{Type: "answer", Body: e.Body.Without("answers").With("id", wire.Text(m.Key)).With("value", m.Value)})
		}
	}
	return out
}
