package thread

import (
	"crypto/rand"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
)

// Ids that are not executors.
const (
	ExchangeID = "exchange" // the exchange itself
	OwnerID    = "owner"    // its owner, who may act for anybody
	unknownID  = "unknown"  // the requester in a thread file that does not name one
)

// IsReserved reports whether an id has a meaning already, or the form of a mesh agent's id, so that nobody may register
// with it.
func IsReserved(id string) bool {
	return strings.EqualFold(id, ExchangeID) || strings.EqualFold(id, OwnerID) || strings.EqualFold(id, unknownID) ||
		strings.HasPrefix(strings.ToLower(id), "am_")
}

// Forms of refs, the names of threads and messages (MESS-49, MESS-64): ours, and those of public servers.
var (
	threadForm  = regexp.MustCompile(`^\d{4}-\d{2}-\d{2}-(\d{3,9}|[A-Za-z0-9]{3,6})(-[a-z0-9](?:[a-z0-9-]{0,31}))?$`)
	safeForm    = regexp.MustCompile(`^[A-Za-z0-9_-][A-Za-z0-9._-]*$`)
	MessageForm = sync.OnceValue(func() *regexp.Regexp { // its bounded repetitions take long to compile
		return regexp.MustCompile(`^([A-Za-z0-9._-]{1,128})/([a-z]{3,12})-(\d{3,6})(-[a-z0-9-]{1,32})?$`)
	})
)

// IsSafeRef reports whether ref has a form that we accept from any server. This form excludes "..", which would lead
// out of a directory if ref is used in a path.
func IsSafeRef(ref string) bool { return len(ref) <= 128 && safeForm.MatchString(ref) }

// IsThreadRef reports whether a ref may name a directory (MESS-64).
func IsThreadRef(ref string) bool { return len(ref) <= 80 && threadForm.MatchString(ref) }

var nonToken = regexp.MustCompile(`[^a-z0-9]+`)

// RefToken returns a client id as the last part of a ref has it: at most 32 characters from a-z 0-9 and -.
func RefToken(id string) string {
	s := strings.Trim(nonToken.ReplaceAllString(strings.ToLower(id), "-"), "-")
	if len(s) > 32 {
		s = strings.Trim(s[:32], "-")
	}
	return s
}

// NewThreadRef returns the ref of thread number n of a day.
func NewThreadRef(day time.Time, n int, clientID string) string {
	return newThreadRef(day, fmt.Sprintf("%03d", n), clientID)
}

// NewRandomRef returns the ref of a thread of a day for an exchange at which nobody counts the threads.
func NewRandomRef(day time.Time, clientID string) string {
	return newThreadRef(day, strings.ToLower(rand.Text()[:6]), clientID)
}

func newThreadRef(day time.Time, name, clientID string) string {
	ref := day.UTC().Format(time.DateOnly) + "-" + name
	if t := RefToken(clientID); t != "" {
		ref += "-" + t
	}
	return ref
}

// messageType returns the word for an entry in a message ref (MESS-49).
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

// NewMessageRef returns the ref of a message.
func NewMessageRef(thread string, e Entry, serial int) string {
	ref := fmt.Sprintf("%s/%s-%03d", thread, messageType(e), serial)
	if t := RefToken(e.Body.GetStr("id")); t != "" {
		ref += "-" + t
	}
	return ref
}

// Target is what a reference names.
type Target struct {
	Ref        string // of the thread
	Suggestion string // the id of a suggestion, if the reference names one
	Question   string // the id of a question, if the reference names one
}

// Resolver looks up the names of MESS-6 for one actor.
type Resolver interface {
	HasThread(ref string) bool                 // the thread exists and the actor may see it
	SuggestionThread(id string) (string, bool) // the thread with this suggestion
	QuestionThread(id string) (string, bool)   // the thread with this question
	NewestWith(id string) (string, bool)       // the newest request with this client id: the actor's own, or else a visible one
	Newest() (string, bool)                    // the actor's newest request
}

// Resolve resolves a reference in the order of MESS-6. If the whole reference names nothing, Resolve tries it without
// the name of our exchange and a colon in front. It reports false if the reference still names nothing.
func Resolve(r Resolver, re, exchange string) (Target, bool) {
	t, ok := resolveWhole(r, re)
	if rest, hasNamespace := strings.CutPrefix(re, exchange+":"); !ok && hasNamespace && rest != "" {
		return resolveWhole(r, rest)
	}
	return t, ok
}

// resolveWhole resolves re without looking for a namespace in it.
func resolveWhole(r Resolver, re string) (Target, bool) {
	if m := MessageForm().FindStringSubmatch(re); m != nil && r.HasThread(m[1]) {
		return Target{Ref: m[1]}, true
	}
	if IsSafeRef(re) && r.HasThread(re) {
		return Target{Ref: re}, true
	}
	if ref, ok := r.SuggestionThread(re); ok {
		return Target{Ref: ref, Suggestion: re}, true
	}
	if ref, ok := r.QuestionThread(re); ok {
		return Target{Ref: ref, Question: re}, true
	}
	if ref, ok := r.NewestWith(re); ok {
		return Target{Ref: ref}, true
	}
	if re == "last" {
		ref, ok := r.Newest()
		return Target{Ref: ref}, ok
	}
	return Target{}, false
}

// FirstRef returns the first reference of an entry, or "".
func FirstRef(body wire.Value) string {
	if s := body.GetStr("re"); s != "" {
		return s
	}
	if list, ok := body.Get("re"); ok && list.Kind() == wire.Array && list.Len() > 0 {
		s, _ := list.At(0).Str()
		return s
	}
	return ""
}
