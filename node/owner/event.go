package owner

import (
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

// Topic is what an event is about: a list of the owner API.
type Topic string

// The topics. TopicReset says that events were lost: look at everything again.
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

// Event says that something changed, never what a peer wrote: a reader that wants to know more asks for it. It is a hint.
// What must not be missed is in the lists: an item of the inbox stays new until somebody acknowledges or answers it.
type Event struct {
	Seq          uint64 `json:"-"` // grows by one; 0 for a reset
	Topic        Topic  `json:"topic"`
	ID           string `json:"id,omitempty"` // of the entry that changed
	State        string `json:"state,omitempty"`
	Peer         string `json:"peer,omitempty"`
	Conversation string `json:"conversation_id,omitempty"`
}

// EventStream is what happens from a moment on.
type EventStream struct {
	Events <-chan Event
	Missed []Event // what happened since the event that was named
	Whole  bool    // Missed has everything
	Name   func(Event) string
	Stop   func()
}

// Events tells what happens.
type Events interface {
	// FollowEvents begins a stream after the event named last, "" for now. It fails if too many streams are open.
	FollowEvents(last string) (EventStream, error)
}

// StreamEvents streams what happens as server-sent events. A stream that comes back names the last event it saw in
// Last-Event-ID; if what came since cannot be told, its first event is a reset: list everything again.
var StreamEvents = Endpoint[None, None]{http.MethodGet, "/events", Read}

// ErrManyStreams: as many streams of events are open as may be.
var ErrManyStreams = &wire.Error{
	Code: wire.RateLimited, Status: http.StatusTooManyRequests, Retry: true, Message: "too many streams of events are open",
}

// streamRetry is how long a reader waits before it comes back after its stream broke.
const streamRetry = 2 * time.Second

func eventOperations(n Events) []Operation {
	return []Operation{Raw(StreamEvents.Method, StreamEvents.Path, StreamEvents.Right, func(c echo.Context) error {
		return streamEvents(c, n)
	})}
}

func streamEvents(c echo.Context, n Events) error {
	wanted, err := wantedTopics(c.QueryParam("topics"))
	if err != nil {
		return err
	}
	last := c.Request().Header.Get("Last-Event-ID")
	if last == "" {
		last = c.QueryParam("last")
	}
	from, err := n.FollowEvents(last)
	if err != nil {
		return err
	}
	defer from.Stop()
	s := eventWriter{EventStream: httpapi.NewEventStream(c), name: from.Name, wanted: wanted}
	if !from.Whole {
		from.Missed = []Event{{Topic: TopicReset}}
	}
	err = s.Retry(streamRetry)
	if err == nil {
		err = s.send(from.Missed...)
	}
	alive := time.NewTicker(httpapi.StreamBeat)
	defer alive.Stop()
	for err == nil {
		select {
		case <-c.Request().Context().Done():
			return nil
		case ev, ok := <-from.Events:
			if !ok {
				return nil
			}
			err = s.send(ev)
		case <-alive.C:
			err = s.Beat()
		}
	}
	return nil // the reader has gone
}

func wantedTopics(list string) ([]Topic, error) {
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

// eventWriter writes the events that one reader wants.
type eventWriter struct {
	httpapi.EventStream
	name   func(Event) string
	wanted []Topic // empty: all
}

func (s eventWriter) send(list ...Event) error {
	var out []httpapi.StreamEvent
	for _, ev := range list {
		if ev.Topic != TopicReset && len(s.wanted) > 0 && !slices.Contains(s.wanted, ev.Topic) {
			continue
		}
		data, err := json.Marshal(ev) // one line
		if err != nil {
			return err
		}
		e := httpapi.StreamEvent{Name: string(ev.Topic), Data: string(data)}
		if ev.Seq > 0 {
			e.ID = s.name(ev)
		}
		out = append(out, e)
	}
	return s.Send(out...)
}
