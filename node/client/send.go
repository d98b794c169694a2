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

// Answer is what a peer's endpoint said to a message that it took (a 2xx).
type Answer struct {
	Status     int
	Body       []byte
	Date       time.Time     // of the peer's clock; zero where it did not say
	Clock      time.Duration // how far the peer's clock is ahead of ours, to about a second; 0 without Date
	RetryAfter time.Duration
}

// Relayed says whether the answer is the unsigned receipt of a relay: the message is delivered, a reply comes later
// (AM-49).
func (a Answer) Relayed() (relayID string, ok bool) {
	if a.Status != http.StatusAccepted {
		return "", false
	}
	v, err := wire.ParseObject(a.Body)
	if err != nil || v.GetStr("status") != "queued" || v.GetStr("signature") != "" {
		return "", false
	}
	return v.GetStr("relay_id"), true
}

// Empty says whether the message was delivered and nothing said to it (AM-49).
func (a Answer) Empty() bool { return len(bytes.TrimSpace(a.Body)) == 0 }

// Message reads the signed reply under the strict reader and the schema. It is not verified: see [Verifier.Reply].
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

// SendError is an attempt to send that brought no answer to hand on. It says what AM-47 and AM-48 want to know.
type SendError struct {
	Retry     bool          // try again later
	Processed bool          // the peer may have processed the message, whatever it said
	After     time.Duration // wait at least so long; 0: the peer did not say

	Status  int         // HTTP status; 0 where there was no answer
	Refusal *wire.Error // what the peer said, its message made printable; nil where it said nothing in the protocol's form
	Clock   time.Duration

	cause error
}

func (e *SendError) Error() string {
	switch {
	case e.Refusal != nil:
		return fmt.Sprintf("the peer refused the message (HTTP %d, %s: %s)", e.Status, e.Refusal.Code, e.Refusal.Message)
	case e.Status != 0 && e.cause == nil:
		return fmt.Sprintf("the peer answered HTTP %d", e.Status)
	}
	return fmt.Sprintf("send: %v", e.cause)
}

// Unwrap returns the cause and the peer's refusal.
func (e *SendError) Unwrap() []error {
	var errs []error
	if e.cause != nil {
		errs = append(errs, e.cause)
	}
	if e.Refusal != nil {
		errs = append(errs, e.Refusal)
	}
	return errs
}

// clockOff is the difference from which on a refusal is blamed on the clocks. Windows are minutes wide.
const clockOff = time.Minute

// ClockOff says whether the message was likely refused because our clock is off (AM-84), and how far the peer's is
// ahead of ours.
func (e *SendError) ClockOff() (ahead time.Duration, off bool) {
	refused := e.Refusal != nil && e.Refusal.Code == wire.InvalidMessage && e.Status == http.StatusBadRequest
	return e.Clock, refused && e.Clock.Abs() >= clockOff
}

// Hint says in one line what a person can do about it, "" where there is nothing to say.
func (e *SendError) Hint() string {
	if ahead, off := e.ClockOff(); off {
		if ahead > 0 {
			return "this machine's clock is about " + ahead.Round(time.Second).String() + " behind the peer's"
		}
		return "this machine's clock is about " + (-ahead).Round(time.Second).String() + " ahead of the peer's"
	}
	if _, guarded := errors.AsType[*GuardError](e); guarded {
		return "the peer's card names an endpoint that this node does not call; a private network is let in with allow_private"
	}
	return ""
}

// Send makes one attempt to deliver a message to the peer's endpoint and waits for the answer. Any 2xx is an Answer;
// everything else, also an answer of more than [MaxAnswer] bytes, is a *[SendError]. It retries nothing.
func (h *HTTP) Send(ctx context.Context, peer Peer, message []byte) (Answer, error) {
	var connected atomic.Bool
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected.Store(true) }})
	req, err := http.NewRequestWithContext(traced, http.MethodPost, peer.Card.Endpoint, bytes.NewReader(message))
	if err != nil {
		return Answer{}, &SendError{cause: err}
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	resp, err := h.Do(traced, peer.Reach, req)
	if err != nil {
		_, guarded := errors.AsType[*GuardError](err)
		return Answer{}, &SendError{Retry: !guarded, Processed: connected.Load(), cause: err}
	}
	now := time.Now()
	a := Answer{Status: resp.StatusCode, RetryAfter: retryAfter(resp.Header, now)}
	if date, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
		a.Date, a.Clock = date.UTC(), date.Sub(now)
	}
	a.Body, err = ReadAll(resp, MaxAnswer)
	if a.Status >= 200 && a.Status < 300 {
		switch {
		case errors.Is(err, ErrAnswerTooLarge): // the same bytes would bring the same answer
			return Answer{}, &SendError{Processed: true, Status: a.Status, Clock: a.Clock, cause: err}
		case err != nil:
			return Answer{}, &SendError{Retry: true, Processed: true, Status: a.Status, Clock: a.Clock, cause: err}
		}
		return a, nil
	}
	return Answer{}, refusal(a)
}

// refusal classifies an answer that is no 2xx. The peer's own word on retrying counts more than its status (AM-47),
// but a redirect is final.
func refusal(a Answer) *SendError {
	e := &SendError{Status: a.Status, Clock: a.Clock, After: a.RetryAfter, Retry: retryStatus(a.Status)}
	if a.Status < 400 {
		e.cause = fmt.Errorf("the peer answered HTTP %d, which is no answer to a message; redirects are not followed", a.Status)
		return e
	}
	if v, err := wire.ParseObject(a.Body); err == nil {
		if told, ok := wire.ParseError(a.Status, v); ok {
			told.Code, told.Message = wire.Code(wire.OneLine(string(told.Code), 64)), wire.OneLine(told.Message, 300)
			told.RetryAfter = a.RetryAfter
			e.Refusal, e.Retry = told, told.Retry
		}
	}
	// AM-48: these two are said before anything happened, and what is final says no as well.
	early := a.Status == http.StatusTooManyRequests || a.Status == http.StatusServiceUnavailable
	e.Processed = !early && (e.Retry || a.Status >= 500)
	return e
}

// retryStatus holds AM-47's list of statuses that are tried again.
func retryStatus(status int) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return true
	}
	return status >= 500
}

// maxRetryAfter is as long as the outbox keeps trying (AM-47).
const maxRetryAfter = 72 * time.Hour

// retryAfter reads Retry-After in either of its forms; 0 where there is none.
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
