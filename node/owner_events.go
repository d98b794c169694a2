package node

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

// streamRetry is how long a reader waits before it comes back after its stream broke.
const streamRetry = 2 * time.Second

// ownerEvents streams what happens as server-sent events. A stream that comes back names the last event it saw in
// Last-Event-ID; where what came since cannot be told, its first event is a reset: list everything anew.
func (n *Node) ownerEvents(c echo.Context) error {
	wanted, err := wantedTopics(c.QueryParam("topics"))
	if err != nil {
		return err
	}
	leave, ok := n.streams.enter()
	if !ok {
		return &wire.Error{
			Code: wire.RateLimited, Status: http.StatusTooManyRequests, Retry: true, Message: "too many streams of events are open",
		}
	}
	defer leave()
	last := c.Request().Header.Get("Last-Event-ID")
	if last == "" {
		last = c.QueryParam("last")
	}
	w, missed, whole := n.events.watch(last)
	defer n.events.leave(w)
	s := eventStream{EventStream: httpapi.NewEventStream(c), log: n.events, wanted: wanted}
	if !whole {
		missed = []Event{{Topic: TopicReset}}
	}
	err = s.Retry(streamRetry)
	if err == nil {
		err = s.send(missed...)
	}
	alive := time.NewTicker(httpapi.StreamBeat)
	defer alive.Stop()
	for err == nil {
		select {
		case <-c.Request().Context().Done():
			return nil
		case ev, ok := <-w.ch:
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
		if err := Topic(s).valid(); err != nil {
			return nil, fault(http.StatusBadRequest, "there is no such "+err.Error(), fmt.Sprintf("topics are %q", topics))
		}
		out = append(out, Topic(s))
	}
	return out, nil
}

// eventStream writes the events that one reader wants.
type eventStream struct {
	httpapi.EventStream
	log    *events
	wanted []Topic // empty: all
}

func (s eventStream) send(list ...Event) error {
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
			e.ID = s.log.id(ev.Seq)
		}
		out = append(out, e)
	}
	return s.Send(out...)
}
