package calendar

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"strings"
	"time"

	"github.com/emersion/go-ical"

	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/wire"
)

// Event is an agreed event. Title, Location and With are text from a peer. The code that makes an Event must limit and
// clean them; toICal escapes them.
type Event struct {
	UID      string        `json:"uid"`
	Title    string        `json:"title"`
	Location string        `json:"location,omitempty"`
	With     string        `json:"with,omitempty"` // the peer's name, or its id
	Start    time.Time     `json:"start"`
	Duration time.Duration `json:"duration"`
	Made     time.Time     `json:"made"` // when it was agreed

	// The peer and the conversation of the agreement, with which the owner can cancel it.
	Peer         string `json:"peer,omitempty"`
	Address      string `json:"address,omitempty"` // of a peer on another network
	Conversation string `json:"conversation_id,omitempty"`
}

// UIDPrefix is the prefix of the UIDs of agreed events.
const UIDPrefix = "agentmesh-"

// UID returns the UID of the event of a conversation: letters, digits and "-", whatever the conversation id contains.
func UID(peer, conversation string) string {
	sum := sha256.Sum256([]byte("agentmesh-event\x00" + peer + "\x00" + conversation))
	name := base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:])
	return UIDPrefix + strings.ToLower(name[:26]) // 130 bits
}

// AgreedEvent returns the event that was agreed in a conversation with peer. ok is false if the agreement is about no event,
// or has no time or length. The texts, which come from the peer, are cleaned and cut; with is the name to show.
func AgreedEvent(a conversations.Agreement, peer, conversation, with string, made time.Time) (e Event, ok bool) {
	start, hasTime := wire.ParseInstant(a.Time)
	length, hasLength := ParseLength(a.Duration)
	return Event{
		UID: UID(peer, conversation), Title: cmp.Or(wire.OneLine(a.Title, 200), "Meeting"), Location: wire.OneLine(a.Location, 200),
		With: wire.OneLine(with, 200), Start: start, Duration: length, Made: made, Peer: peer, Conversation: conversation,
	}, hasTime && hasLength && a.Intent == wire.Schedule
}

// Encode returns the event as an iCalendar file.
func (e Event) Encode() []byte {
	var b bytes.Buffer
	if err := ical.NewEncoder(&b).Encode(e.toICal()); err != nil {
		panic(fmt.Sprintf("calendar: encode event: %v", err)) // toICal sets all required properties
	}
	return b.Bytes()
}

func (e Event) toICal() *ical.Calendar {
	event := ical.NewEvent()
	event.Props.SetText(ical.PropUID, e.UID)
	event.Props.SetDateTime(ical.PropDateTimeStamp, e.Made.UTC())
	event.Props.SetDateTime(ical.PropDateTimeStart, e.Start.UTC())
	event.Props.SetDateTime(ical.PropDateTimeEnd, e.Start.Add(e.Duration).UTC())
	event.Props.SetText(ical.PropSummary, e.Title)
	if e.Location != "" {
		event.Props.SetText(ical.PropLocation, e.Location)
	}
	if e.With != "" {
		event.Props.SetText(ical.PropDescription, "Agreed with "+e.With+" over AgentMesh.")
	}
	event.SetStatus(ical.EventConfirmed)
	cal := ical.NewCalendar()
	cal.Props.SetText(ical.PropVersion, "2.0")
	cal.Props.SetText(ical.PropProductID, "-//AgentMesh//agentmesh//EN")
	cal.Children = append(cal.Children, event.Component)
	return cal
}
