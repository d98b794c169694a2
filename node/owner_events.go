package node

import (
	"bytes"
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

const (
	streamAlive = 20 * time.Second // between signs of life on a silent stream
	streamWrite = 45 * time.Second // for a reader that takes nothing; then the stream ends
)

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
	s := stream{c: c, n: n, wanted: wanted}
	if err := s.open(missed, whole); err != nil {
		return nil // the reader has gone
	}
	alive := time.NewTicker(streamAlive)
	defer alive.Stop()
	for {
		select {
		case <-c.Request().Context().Done():
			return nil
		case ev, ok := <-w.ch:
			if !ok || s.event(ev) != nil {
				return nil
			}
		case <-alive.C:
			if s.write([]byte(":\n\n")) != nil {
				return nil
			}
		}
	}
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

// stream writes server-sent events to one reader.
type stream struct {
	c      echo.Context
	n      *Node
	wanted []Topic // empty: all
}

func (s stream) open(missed []Event, whole bool) error {
	h := s.c.Response().Header()
	h.Set("Content-Type", "text/event-stream; charset=utf-8")
	h.Set("X-Accel-Buffering", "no")
	s.c.Response().WriteHeader(http.StatusOK)
	if err := s.write([]byte("retry: 2000\n\n")); err != nil {
		return err
	}
	if !whole {
		return s.event(Event{Topic: TopicReset})
	}
	for _, ev := range missed {
		if err := s.event(ev); err != nil {
			return err
		}
	}
	return nil
}

func (s stream) event(ev Event) error {
	if ev.Topic != TopicReset && len(s.wanted) > 0 && !slices.Contains(s.wanted, ev.Topic) {
		return nil
	}
	data, err := json.Marshal(ev) // one line
	if err != nil {
		return err
	}
	var b bytes.Buffer
	if ev.Seq > 0 {
		fmt.Fprintf(&b, "id: %s\n", s.n.events.id(ev.Seq))
	}
	fmt.Fprintf(&b, "event: %s\ndata: %s\n\n", ev.Topic, data)
	return s.write(b.Bytes())
}

func (s stream) write(p []byte) error {
	if err := httpapi.KeepOpen(s.c, streamWrite); err != nil {
		return err
	}
	if _, err := s.c.Response().Write(p); err != nil {
		return err
	}
	return http.NewResponseController(s.c.Response()).Flush()
}
