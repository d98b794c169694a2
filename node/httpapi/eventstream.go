package httpapi

import (
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"
)

// StreamEvent is one server-sent event. Its texts must not contain line breaks; callers pass fixed texts or JSON.
type StreamEvent struct {
	ID   string // a returning reader sends it in Last-Event-ID; "" keeps the previous id
	Name string // "" for an event of the default type
	Data string
}

const (
	// StreamBeat is how long an event stream may be silent before its sender calls [EventStream.Beat].
	StreamBeat = 20 * time.Second

	streamWriteTimeout = 45 * time.Second // for a reader that reads nothing
)

// EventStream writes server-sent events to one reader. Every error means that the reader has gone: it closed the
// connection, or read nothing for 45 seconds. An EventStream is not safe for concurrent use.
type EventStream struct{ c echo.Context }

// NewEventStream starts the response to c.
func NewEventStream(c echo.Context) EventStream {
	h := c.Response().Header()
	h.Set("Content-Type", "text/event-stream; charset=utf-8")
	h.Set("X-Accel-Buffering", "no")
	c.Response().WriteHeader(http.StatusOK)
	return EventStream{c}
}

// Retry tells the reader how long to wait before it reconnects.
func (s EventStream) Retry(after time.Duration) error {
	return s.write("retry: " + strconv.FormatInt(after.Milliseconds(), 10) + "\n\n")
}

// Send sends events together; without events it sends nothing.
func (s EventStream) Send(events ...StreamEvent) error {
	if len(events) == 0 {
		return nil
	}
	var b strings.Builder
	for _, e := range events {
		if e.ID != "" {
			b.WriteString("id: " + e.ID + "\n")
		}
		if e.Name != "" {
			b.WriteString("event: " + e.Name + "\n")
		}
		b.WriteString("data: " + e.Data + "\n\n")
	}
	return s.write(b.String())
}

// Beat sends a comment, so that proxies do not close an idle stream.
func (s EventStream) Beat() error { return s.write(":\n\n") }

// Follow sends the values of a channel with send until the channel is closed or the reader has gone. It also calls
// Beat after every StreamBeat.
func Follow[T any](s EventStream, from <-chan T, send func(T) error) {
	alive := time.Tick(StreamBeat)
	for err := error(nil); err == nil; {
		select {
		case <-s.c.Request().Context().Done():
			return
		case v, ok := <-from:
			if !ok {
				return
			}
			err = send(v)
		case <-alive:
			err = s.Beat()
		}
	}
}

func (s EventStream) write(text string) error {
	if err := KeepOpen(s.c, streamWriteTimeout); err != nil {
		return err
	}
	if _, err := io.WriteString(s.c.Response(), text); err != nil {
		return err
	}
	return http.NewResponseController(s.c.Response()).Flush()
}
