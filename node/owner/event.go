package owner

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
)

// Topic names the list in the owner API that an event is about, such as the inbox.
type Topic string

// The topics. TopicReset means that events were lost and the reader must read everything again.
const (
	TopicReset         Topic = "reset"
	TopicInbox         Topic = "inbox"
	TopicApprovals     Topic = "approvals"
	TopicConversations Topic = "conversations"
	TopicOutbox        Topic = "outbox"
	TopicNotices       Topic = "notices"
	TopicPeers         Topic = "peers"
	TopicAudit         Topic = "audit"
	TopicStatus        Topic = "status"
)

var topics = []Topic{
	TopicReset, TopicInbox, TopicApprovals, TopicConversations, TopicOutbox, TopicNotices, TopicPeers, TopicAudit, TopicStatus,
}

// Event is a hint that something changed, without text of a peer. A reader that misses an event
// still finds the change in the list that the topic names: an inbox item stays new until it is acknowledged or answered.
type Event struct {
	Seq          uint64 `json:"-"` // grows by one; 0 for a reset
	Topic        Topic  `json:"topic"`
	ID           string `json:"id,omitempty"` // of the entry that changed
	State        string `json:"state,omitempty"`
	Peer         string `json:"peer,omitempty"`
	Conversation string `json:"conversation_id,omitempty"`
	Foreign      bool   `json:"-"` // with TopicInbox: the sender of the item may be a peer on another network
}

// EventStream is the stream of events for one reader.
type EventStream struct {
	Events   <-chan Event
	Missed   []Event            // the events after the one that the reader named
	Complete bool               // Missed is complete
	Name     func(Event) string // returns the SSE id of an event, which a reader sends to continue after it
	Stop     func()             // ends the stream; the reader must call it
}

// Events provides event streams.
type Events interface {
	// FollowEvents begins a stream after the event with the name lastName or, if lastName is "", now. It fails if too
	// many streams are open.
	FollowEvents(lastName string) (EventStream, error)
}

// StreamEvents streams events as server-sent events. A reader that reconnects sends the name of the last event it saw
// as Last-Event-ID. If the node no longer knows all later events, the first event is a reset.
var StreamEvents = Endpoint[None, None]{http.MethodGet, "/events", Read}

// ErrManyStreams means that the maximum number of event streams is open.
var ErrManyStreams = &wire.Error{
	Code: wire.RateLimited, Status: http.StatusTooManyRequests, Retry: true, Message: "too many streams of events are open",
}

// streamRetry is how long a reader waits before it reconnects a broken stream.
const streamRetry = 2 * time.Second

func eventOperations(n Events) []Operation {
	return []Operation{Raw(StreamEvents.Method, StreamEvents.Path, StreamEvents.Right, func(c echo.Context) error {
		return streamEvents(c, n)
	})}
}

func streamEvents(c echo.Context, n Events) error {
	wanted, err := parseTopics(c.QueryParam("topics"))
	if err != nil {
		return err
	}
	last := cmp.Or(c.Request().Header.Get("Last-Event-ID"), c.QueryParam("last"))
	stream, err := n.FollowEvents(last)
	if err != nil {
		return err
	}
	defer stream.Stop()
	w := eventWriter{EventStream: httpapi.NewEventStream(c), name: stream.Name, wanted: wanted}
	if !stream.Complete {
		stream.Missed = []Event{{Topic: TopicReset}}
	}
	err = w.Retry(streamRetry)
	if err == nil {
		err = w.send(stream.Missed...)
	}
	if err == nil {
		httpapi.Follow(w.EventStream, stream.Events, func(ev Event) error { return w.send(ev) })
	}
	return nil // the reader is gone
}

func parseTopics(list string) ([]Topic, error) {
	if list == "" {
		return nil, nil
	}
	var out []Topic
	for s := range strings.SplitSeq(list, ",") {
		if !slices.Contains(topics, Topic(s)) {
			return nil, Fault(http.StatusBadRequest, fmt.Sprintf("there is no such topic %q", s), fmt.Sprintf("topics are %q", topics))
		}
		out = append(out, Topic(s))
	}
	return out, nil
}

// eventWriter writes the events of the topics that one reader wants.
type eventWriter struct {
	httpapi.EventStream
	name   func(Event) string
	wanted []Topic // empty: all
}

// send sends the events that the reader wants.
func (w eventWriter) send(list ...Event) error {
	var out []httpapi.StreamEvent
	for _, ev := range list {
		if ev.Topic != TopicReset && len(w.wanted) > 0 && !slices.Contains(w.wanted, ev.Topic) {
			continue
		}
		data, err := json.Marshal(ev) // one line
		if err != nil {
			return err
		}
		e := httpapi.StreamEvent{Name: string(ev.Topic), Data: string(data)}
		if ev.Seq > 0 {
			e.ID = w.name(ev)
		}
		out = append(out, e)
	}
	return w.Send(out...)
}
