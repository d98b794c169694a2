package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
)

// Answer is the answer of a peer's endpoint with a status of 2xx.
type Answer struct {
	Status     int
	Body       []byte
	ClockAhead time.Duration // how far the peer's clock is ahead of ours, to about a second; 0 if unknown
	RetryAfter time.Duration
}

// Receipt returns the relay id of the unsigned receipt of a mailbox: the message is delivered, and a reply comes later
// (AM-49).
func (a Answer) Receipt() (relayID string, ok bool) {
	if a.Status != http.StatusAccepted {
		return "", false
	}
	v, err := wire.ParseObject(a.Body)
	if err != nil || v.GetStr("status") != "queued" || v.GetStr("signature") != "" {
		return "", false
	}
	return v.GetStr("relay_id"), true
}

// Empty reports whether the answer of a delivered message has no content (AM-49).
func (a Answer) Empty() bool { return len(bytes.TrimSpace(a.Body)) == 0 }

// Message parses the signed reply with the strict reader and the schema. [Verifier.VerifyReply] verifies it.
func (a Answer) Message() (wire.Message, error) {
	v, err := wire.ParseObject(a.Body)
	if err != nil {
		return wire.Message{}, fmt.Errorf("%w: %w", ErrReplyUnverified, err)
	}
	m, err := wire.ParseMessage(v)
	if err != nil {
		return wire.Message{}, fmt.Errorf("%w: %w", ErrReplyUnverified, err)
	}
	return m, nil
}

// SendError is a failed attempt to send a message. The outbox decides by its fields when to try again (AM-47, AM-48).
type SendError struct {
	Retry     bool          // try again later
	Processed bool          // the peer may have processed the message despite the error
	After     time.Duration // wait at least this long; 0 if the peer did not say
	// Awaits is the address of what must become reachable first: a peer in another network, or our link to that
	// network (an address without a peer). It is "" otherwise. The message is sent again as soon as the bridge
	// reports that the address is reachable; see bridge.Mesh.
	Awaits string
	// Unsent means that a limit on sending held the message back. This does not count as an attempt: the message is
	// sent again after the time in After, or after a few seconds.
	Unsent bool

	Status     int           // HTTP status; 0 without an answer
	Refusal    *wire.Error   // the peer's error, with a printable message; nil if the answer is not a protocol error
	ClockAhead time.Duration // see [Answer]
	Cause      error         // what failed; may be nil if Status or Refusal is set
}

// RetryLater returns a SendError with this cause that only asks for another attempt, or nil for nil.
func RetryLater(cause error) error {
	if cause == nil {
		return nil
	}
	return &SendError{Retry: true, Cause: cause}
}

func (e *SendError) Error() string {
	switch {
	case e.Refusal != nil:
		return fmt.Sprintf("the peer refused the message (HTTP %d, %s: %s)", e.Status, e.Refusal.Code, e.Refusal.Message)
	case e.Status != 0 && e.Cause == nil:
		return fmt.Sprintf("the peer answered HTTP %d", e.Status)
	}
	return fmt.Sprintf("send: %v", e.Cause)
}

// Unwrap returns the cause and the peer's refusal.
func (e *SendError) Unwrap() []error {
	var errs []error
	if e.Cause != nil {
		errs = append(errs, e.Cause)
	}
	if e.Refusal != nil {
		errs = append(errs, e.Refusal)
	}
	return errs
}

// minClockOff is the smallest difference of the clocks that may cause a refusal. Peers accept differences of minutes.
const minClockOff = time.Minute

// ClockOff reports whether the message was probably refused because our clock is wrong (AM-84). ahead is how far the
// peer's clock is ahead of ours.
func (e *SendError) ClockOff() (ahead time.Duration, off bool) {
	refused := e.Refusal != nil && e.Refusal.Code == wire.InvalidMessage && e.Status == http.StatusBadRequest
	return e.ClockAhead, refused && e.ClockAhead.Abs() >= minClockOff
}

// Hint returns one line about what a person can do, or "".
func (e *SendError) Hint() string {
	if ahead, off := e.ClockOff(); off {
		if ahead > 0 {
			return "this machine's clock is about " + ahead.Round(time.Second).String() + " behind the peer's"
		}
		return "this machine's clock is about " + (-ahead).Round(time.Second).String() + " ahead of the peer's"
	}
	if guardErr, ok := errors.AsType[*GuardError](e); ok {
		if guardErr.Reason == portReason {
			return "the peer's card names an endpoint that this node does not call: " + portReason
		}
		return "the peer's card names an endpoint that this node does not call; to allow a private network, set allow_private"
	}
	return ""
}

// Send makes one attempt to deliver a message to the peer's endpoint and waits for the answer. Every error is a
// *[SendError]; a status other than 2xx and an answer of more than [MaxAnswer] bytes are errors too. If the
// status of the large answer is 2xx, its error wraps [ErrReplyUnverified].
func (h *HTTP) Send(ctx context.Context, peer Peer, message []byte) (Answer, error) {
	var connected atomic.Bool
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected.Store(true) }})
	req, err := http.NewRequestWithContext(traced, http.MethodPost, peer.Card.Endpoint, bytes.NewReader(message))
	if err != nil {
		return Answer{}, &SendError{Cause: err}
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	resp, err := h.Do(traced, peer.Reach, req)
	if err != nil {
		_, guarded := errors.AsType[*GuardError](err)
		return Answer{}, &SendError{Retry: !guarded, Processed: connected.Load(), Cause: err}
	}
	now := time.Now()
	a := Answer{Status: resp.StatusCode, RetryAfter: retryAfter(resp.Header, now)}
	if date, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
		a.ClockAhead = date.Sub(now)
	}
	a.Body, err = ReadAll(resp, MaxAnswer)
	if a.Status >= 200 && a.Status < 300 {
		switch {
		case errors.Is(err, ErrAnswerTooLarge): // the peer accepted the message, but this is not a reply (AM-18)
			return Answer{}, &SendError{Processed: true, Status: a.Status, ClockAhead: a.ClockAhead, Cause: fmt.Errorf("%w: %w", ErrReplyUnverified, err)}
		case err != nil:
			return Answer{}, &SendError{Retry: true, Processed: true, Status: a.Status, ClockAhead: a.ClockAhead, Cause: err}
		}
		return a, nil
	}
	return Answer{}, newSendError(a)
}

// newSendError returns the error for a status other than 2xx. The retry member of the answer takes precedence over the
// status (AM-47), but a redirect is always final.
func newSendError(a Answer) *SendError {
	e := &SendError{Status: a.Status, ClockAhead: a.ClockAhead, After: a.RetryAfter, Retry: IsRetryStatus(a.Status)}
	if a.Status < 400 {
		e.Cause = fmt.Errorf("the peer answered HTTP %d, which is not a reply to a message; redirects are not followed", a.Status)
		return e
	}
	if v, err := wire.ParseObject(a.Body); err == nil {
		if refusal, ok := wire.ParseError(a.Status, v); ok {
			refusal.Code, refusal.Message = wire.Code(wire.OneLine(string(refusal.Code), 64)), wire.OneLine(refusal.Message, 300)
			refusal.RetryAfter = a.RetryAfter
			e.Refusal, e.Retry = refusal, refusal.Retry
		}
	}
	// The peer sends these two statuses before it processes the message (AM-48). After a final 4xx, it has not
	// processed the message either.
	early := a.Status == http.StatusTooManyRequests || a.Status == http.StatusServiceUnavailable
	e.Processed = !early && (e.Retry || a.Status >= 500)
	return e
}

// IsRetryStatus reports whether AM-47 demands a retry after the status.
func IsRetryStatus(status int) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return true
	}
	return status >= 500
}

// maxRetryAfter bounds a Retry-After: the outbox does not try longer than this (AM-47).
const maxRetryAfter = 72 * time.Hour

// retryAfter reads both forms of Retry-After. It returns 0 if the header is missing or invalid.
func retryAfter(h http.Header, now time.Time) time.Duration {
	text := h.Get("Retry-After")
	if seconds, err := strconv.ParseUint(text, 10, 31); err == nil {
		return min(time.Duration(seconds)*time.Second, maxRetryAfter)
	}
	if at, err := http.ParseTime(text); err == nil {
		return min(max(0, at.Sub(now)), maxRetryAfter)
	}
	return 0
}
