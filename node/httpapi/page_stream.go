package httpapi

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/waiting"
	"github.com/agentmesh/agentmesh/node/wire"
)

const (
	maxStreamsOpen = 16                     // of all pages together
	streamPause    = 250 * time.Millisecond // between two events; later changes are sent together
	streamRetry    = time.Second            // before a browser connects again
	maxTopics      = 64                     // in one event; more are dropped, but sources have fewer
)

// changedTopics collects the topics that changed since the last event, each once, so that its size is bounded.
type changedTopics struct {
	mu     sync.Mutex
	topics map[string]struct{}
	wake   chan struct{}
}

func (d *changedTopics) mark(topic string) {
	d.mu.Lock()
	if len(d.topics) < maxTopics {
		d.topics[topic] = struct{}{}
	}
	d.mu.Unlock()
	waiting.Wake(d.wake)
}

func (d *changedTopics) take() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	list := slices.Sorted(maps.Keys(d.topics))
	clear(d.topics)
	return list
}

// stream sends the names of changed topics to an open page, which then fetches its content again. A broken stream loses
// nothing, because the page fetches everything when it connects again.
func (p *Pages) stream(c echo.Context) error {
	select {
	case p.streams <- struct{}{}:
		defer func() { <-p.streams }()
	default:
		return wire.ErrUnavailable
	}
	ctx, cancel := context.WithCancel(c.Request().Context())
	changed := &changedTopics{topics: make(map[string]struct{}), wake: make(chan struct{}, 1)}
	var sources sync.WaitGroup
	for _, s := range p.sources {
		sources.Go(func() { s(ctx, changed.mark) })
	}
	defer sources.Wait()
	defer cancel()

	events := NewEventStream(c)
	err := events.Retry(streamRetry)
	if err == nil {
		err = events.Send(StreamEvent{Name: "ready"})
	}
	beat := time.Tick(StreamBeat)
	for err == nil && p.pause(ctx) {
		select {
		case <-changed.wake:
			err = events.Send(StreamEvent{Name: "changed", Data: strings.Join(changed.take(), " ")})
		case <-beat:
			err = events.Beat()
		case <-p.stopped:
			return nil
		case <-ctx.Done():
			return nil
		}
	}
	return nil // the page was closed, or the process stops
}

// pause waits until the next event may be sent. It returns false if the stream must end.
func (p *Pages) pause(ctx context.Context) bool {
	select {
	case <-time.After(streamPause):
		return true
	case <-p.stopped:
	case <-ctx.Done():
	}
	return false
}
