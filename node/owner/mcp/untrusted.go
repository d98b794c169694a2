package mcp

import (
	"cmp"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// maxResult bounds the JSON of a result in bytes: about 2,000 tokens.
const maxResult = 6000

// Untrusted is text that somebody else wrote, with its author. It is the only place for such text in a result.
type Untrusted struct {
	Text string `json:"untrusted_text"`
	From string `json:"from"` // agent id, or a handle
	// Address is for a handle: the id that the author chose, or what the other network calls the author.
	Address string `json:"untrusted_from,omitempty"`
	// VerifiedKey is the fingerprint of the key that proves the author, or "none".
	VerifiedKey string `json:"verified_key"`
}

// mark returns a text of an author, cleaned and cut to at most limit bytes.
func (h *handles) mark(text string, from party, key string, limit int) *Untrusted {
	key = cmp.Or(key, "none")
	name, id := h.partner(from), cmp.Or(from.address, from.peer)
	if name == id {
		id = ""
	}
	return &Untrusted{cut(clean(text), limit), name, cut(clean(id), 160), key}
}

// intentPrefix returns the name of a custom intent for the text of its message, in which it is marked as untrusted.
func intentPrefix(intent wire.Intent) string {
	if intent == "" || intent.OrCustom() == string(intent) {
		return ""
	}
	return string(intent) + ": "
}

// The beginnings of links that a program may follow. Browsers need no slashes after "http:", treat a backslash as a
// slash, and add the scheme to a link in Markdown or HTML that begins with two slashes.
var (
	httpScheme   = regexp.MustCompile(`(?i)\b(https?):`)
	targetOfLink = regexp.MustCompile(`([(<="':]\s*[/\\])([/\\])`)
)

// clean removes control, format and bidirectional characters except line breaks and tabs, and makes URLs inert.
func clean(text string) string {
	text = strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return r
		case r == utf8.RuneError, unicode.IsControl(r), unicode.Is(unicode.Cf, r), r == '\u2028', r == '\u2029',
			unicode.Is(unicode.Variation_Selector, r):
			return -1
		}
		return r
	}, text)
	text = strings.ReplaceAll(httpScheme.ReplaceAllString(text, "$1[:]"), "://", "[:]//")
	return targetOfLink.ReplaceAllString(text, "$1[/]$2")
}

// cut returns the beginning of a text that takes at most limit bytes of JSON, with a mark if the text is longer.
func cut(text string, limit int) string {
	const mark = " […]"
	size, end := 0, 0 // end is where the text ends if the mark must follow
	for i, r := range text {
		if size <= limit-len(mark) {
			end = i
		}
		switch r {
		case '<', '>', '&': // encoding/json writes them as \u003c
			size += 6
		case '"', '\\', '\n', '\t':
			size += 2
		default:
			size += utf8.RuneLen(r)
		}
		if size > limit {
			return text[:end] + mark
		}
	}
	return text
}

// plain matches ids, addresses and tags, which have no space and little punctuation.
var plain = regexp.MustCompile(`^[A-Za-z0-9@:/._~+-]+$`)

// safeID returns an id, address or tag, or "" if the text has another form.
func safeID(text string) string {
	if len(text) <= 160 && plain.MatchString(text) {
		return text
	}
	return ""
}

// describe returns what a card says about its agent: name, tags and description, or the skills of an A2A card.
func describe(card wire.Value) string {
	lines := []string{card.GetStr("name")}
	for _, member := range []string{"capabilities", "intents", "skills"} {
		list, _ := card.Get(member)
		var tags []string
		for e := range list.Elems() {
			tag, ok := e.Str()
			if !ok {
				tag = e.GetStr("name")
			}
			if tag != "" && len(tag) <= 48 && len(tags) < 8 {
				tags = append(tags, tag)
			}
		}
		if len(tags) > 0 {
			lines = append(lines, member+": "+strings.Join(tags, ", "))
		}
	}
	if about := card.GetStr("description"); about != "" {
		lines = append(lines, about)
	}
	return strings.Join(lines, "\n")
}

// textOf returns what a message says. A message of a custom intent, or one in which a text does not say all, is the JSON of
// its payload, because a program must read its members.
func textOf(intent wire.Intent, payload wire.Value) string {
	payload = withoutTask(payload).Without("metadata")
	said := owner.Say(payload.JSON(), true)
	switch plain := said.Meeting == nil && len(said.Facts) == 0; {
	case plain && said.Text != "":
		return said.Text
	case intent.IsStandard() && payload.Kind() == wire.Object:
		return strings.TrimSuffix(said.Deed(intent)+": "+strings.Join(said.Lines(), " · "), ": ")
	}
	return string(payload.JSON())
}

// withoutTask removes the task and the artifacts of an answer over A2A if they only repeat its text.
func withoutTask(payload wire.Value) wire.Value {
	message, _ := payload.Get("message")
	body := message.GetStr("body") + payload.GetStr("answer")
	task, _ := payload.Get("task")
	said := task.GetStr("text")
	if body == "" || said != "" && !strings.Contains(body, said) || task.Without("state", "text").Len() > 0 ||
		!slices.Contains([]string{"", "completed", "input_required"}, task.GetStr("state")) {
		return payload
	}
	artifacts, _ := payload.Get("artifacts")
	for artifact := range artifacts.Elems() {
		parts, _ := artifact.Get("parts")
		for part := range parts.Elems() {
			if part.Without("text").Len() > 0 || !strings.Contains(body, part.GetStr("text")) {
				return payload
			}
		}
	}
	return payload.Without("task", "artifacts")
}

// textOfItem returns what an inbox item says, with the name of a custom intent, which is untrusted, too.
func textOfItem(item owner.Item) string {
	v, err := wire.ParseObject(item.Payload)
	if err != nil {
		return string(item.Payload)
	}
	return intentPrefix(item.Intent) + textOf(item.Intent, v)
}

// fit returns how many entries, counted from the first, fit into maxResult bytes of JSON. The first always does.
func fit[T any](entries []T) int {
	size := 200 // the members around the list
	for i, e := range entries {
		data, err := json.Marshal(e)
		if size += len(data) + 1; err != nil || size > maxResult && i > 0 {
			return i
		}
	}
	return len(entries)
}
