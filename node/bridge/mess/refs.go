package mess

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
)

// The ids that mean somebody else than an executor.
const (
	exchangeID = "exchange" // the exchange itself
	ownerID    = "owner"    // its owner, who may act for anybody
	unknownID  = "unknown"  // who asked in a thread file that does not say
)

// reserved says whether an id must not be registered: it stands for somebody already.
func reserved(id string) bool {
	return strings.EqualFold(id, exchangeID) || strings.EqualFold(id, ownerID) || strings.EqualFold(id, unknownID) ||
		strings.HasPrefix(strings.ToLower(id), "am_")
}

// The forms of MESS-49 and MESS-64: ours, and the ones that public servers make.
var (
	threadForm  = regexp.MustCompile(`^\d{4}-\d{2}-\d{2}-(\d{3,9}|[A-Za-z0-9]{3,6})(-[a-z0-9](?:[a-z0-9-]{0,31}))?$`)
	safeRef     = regexp.MustCompile(`^[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}$`) // "..", as a segment of a path, leads out of it
	messageForm = regexp.MustCompile(`^([A-Za-z0-9._-]{1,128})/([a-z]{3,12})-(\d{3,6})(-[a-z0-9-]{1,32})?$`)
)

// validThreadRef says whether a ref may name a directory (MESS-64).
func validThreadRef(ref string) bool { return len(ref) <= 80 && threadForm.MatchString(ref) }

var notToken = regexp.MustCompile(`[^a-z0-9]+`)

// token makes the readable end of a ref from a client's id.
func token(id string) string {
	s := strings.Trim(notToken.ReplaceAllString(strings.ToLower(id), "-"), "-")
	if len(s) > 32 {
		s = strings.Trim(s[:32], "-")
	}
	return s
}

func threadRef(day time.Time, n int, clientID string) string {
	ref := fmt.Sprintf("%s-%03d", day.UTC().Format(time.DateOnly), n)
	if t := token(clientID); t != "" {
		ref += "-" + t
	}
	return ref
}

// messageType is the word in a message ref (MESS-49).
func messageType(e Entry) string {
	switch e.Type {
	case "status":
		switch c, _ := ParseCode(e.Body.GetStr("code")); c {
		case Claimed:
			return "claim"
		case NeedsInput:
			return "question"
		}
		return "status"
	case "reply", "answer":
		return "answer"
	case "response", "cancel", "request", "suggestion", "ack":
		return e.Type
	}
	return "followup"
}

func messageRef(thread string, e Entry, serial int) string {
	ref := fmt.Sprintf("%s/%s-%03d", thread, messageType(e), serial)
	if t := token(e.Body.GetStr("id")); t != "" {
		ref += "-" + t
	}
	return ref
}

// target is what a re: names.
type target struct {
	ref        string // of the thread
	suggestion string // id, where it names one
	question   string // likewise
}

// resolver finds what MESS-6 says, for one actor.
type resolver interface {
	thread(ref string) bool              // there is one that the actor may see
	suggestion(id string) (string, bool) // the thread that it was made in
	question(id string) (string, bool)   // the thread that asks it
	newestWith(id string) (string, bool) // the newest own request with this client id
	newest() (string, bool)              // the newest own request
}

// resolve finds the target of a re: in the order of MESS-6.
func resolve(r resolver, re, exchange string) (target, bool) {
	if t, ok := resolveWhole(r, re); ok {
		return t, true
	}
	if re == "last" {
		ref, ok := r.newest()
		return target{ref: ref}, ok
	}
	rest, ok := strings.CutPrefix(re, exchange+":")
	if !ok || rest == "" {
		return target{}, false
	}
	if t, ok := resolveWhole(r, rest); ok {
		return t, true
	}
	if rest == "last" {
		ref, ok := r.newest()
		return target{ref: ref}, ok
	}
	return target{}, false
}

func resolveWhole(r resolver, re string) (target, bool) {
	if m := messageForm.FindStringSubmatch(re); m != nil && r.thread(m[1]) {
		return target{ref: m[1]}, true
	}
	if safeRef.MatchString(re) && r.thread(re) {
		return target{ref: re}, true
	}
	if ref, ok := r.suggestion(re); ok {
		return target{ref: ref, suggestion: re}, true
	}
	if ref, ok := r.question(re); ok {
		return target{ref: ref, question: re}, true
	}
	if ref, ok := r.newestWith(re); ok {
		return target{ref: ref}, true
	}
	return target{}, false
}

// first returns the first reference of an entry, "" where it has none.
func first(body wire.Value) string {
	if s := body.GetStr("re"); s != "" {
		return s
	}
	if list, ok := body.Get("re"); ok && list.Kind() == wire.Array && list.Len() > 0 {
		s, _ := list.At(0).Str()
		return s
	}
	return ""
}
