package httpapi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/waiting"
)

// parkingKey is the context key of a listener's *parking. A listener with TLS has no parking.
type parkingKey struct{}

// parking holds the connections of requests that wait; see [Park]. It is also a listener, from which the server takes a
// connection back for its next request.
type parking struct {
	addr    net.Addr
	ctx     context.Context // ends when waiting requests must end
	log     *slog.Logger
	back    chan net.Conn
	closed  chan struct{}
	close   func()
	waiting sync.WaitGroup
}

func newParking(ctx context.Context, addr net.Addr, log *slog.Logger) *parking {
	p := &parking{addr: addr, ctx: ctx, log: log, back: make(chan net.Conn), closed: make(chan struct{})}
	p.close = sync.OnceFunc(func() { close(p.closed) })
	return p
}

// Accept returns the next connection that a request gave back.
func (p *parking) Accept() (net.Conn, error) {
	select {
	case conn := <-p.back:
		return conn, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

// Close ends Accept. Connections that come back later are closed.
func (p *parking) Close() error {
	p.close()
	return nil
}

// Addr returns the address of the listener that accepted the connections.
func (p *parking) Addr() net.Addr { return p.addr }

// Waiter is a request that waits for something.
type Waiter interface {
	// OnWake makes the waiter call wake whenever there may be an answer, until Leave. wake does not block.
	OnWake(wake func())
	// Answer returns the answer as JSON, or nil if the request must wait.
	Answer(ctx context.Context) ([]byte, error)
	// Leave ends the wait.
	Leave()
}

// Park answers a request when waiter has an answer. After maxWait, or if the server stops or the client already sends
// its next request, the answer is the JSON in empty. Park calls waiter.Leave. The handler must return Park's error.
//
// While it waits, a request over plain HTTP/1.1 has one small goroutine and no buffers. This takes a third of the
// memory that net/http needs. The log line and the metrics of such a request leave out the wait. Other requests wait
// in the handler.
func Park(c echo.Context, maxWait time.Duration, waiter Waiter, empty []byte) error {
	r, w := c.Request(), c.Response()
	p, ok := r.Context().Value(parkingKey{}).(*parking)
	// Only a plain connection that serves further requests can be parked, and only after the whole request was read.
	if !ok || p.ctx.Err() != nil || maxWait == 0 || r.Close || !r.ProtoAtLeast(1, 1) || r.ContentLength != 0 || hasCaller(r) {
		return waitInHandler(c, maxWait, waiter, empty)
	}
	parked := &parkedRequest{parking: p, header: w.Header().Clone(), waiter: waiter, empty: empty, end: time.Now().Add(maxWait)}
	defer func() {
		if !parked.hasConn.Load() {
			waiter.Leave()
		}
	}()
	waiter.OnWake(parked.wake)
	body, err := waiter.Answer(r.Context())
	if body != nil || err != nil {
		return respond(c, body, err)
	}
	p.waiting.Add(1)
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		p.waiting.Done()
		return fmt.Errorf("take over the connection of a request: %w", err)
	}
	early, _ := rw.Reader.Peek(rw.Reader.Buffered()) // the beginning of the next request
	parked.conn = conn.(*countedConn)                // Serve has checked the type of the listener
	parked.conn.unread = slices.Clone(early)
	parked.hasConn.Store(true)
	w.Status, w.Committed = http.StatusOK, true // for the log and the metrics; run sends the response
	go parked.run()
	return nil
}

// waitInHandler is Park for a request whose connection cannot be parked.
func waitInHandler(c echo.Context, maxWait time.Duration, waiter Waiter, empty []byte) error {
	defer waiter.Leave()
	woken := make(chan struct{}, 1)
	waiter.OnWake(func() { waiting.Wake(woken) })
	if maxWait > 0 {
		if err := KeepOpen(c, maxWait+writeTimeout); err != nil {
			return err
		}
	}
	ctx, end := c.Request().Context(), time.NewTimer(maxWait)
	defer end.Stop()
	for {
		if body, err := waiter.Answer(ctx); body != nil || err != nil {
			return respond(c, body, err)
		}
		select {
		case <-ctx.Done():
			return Raw(c, http.StatusOK, empty)
		case <-end.C:
			return Raw(c, http.StatusOK, empty)
		case <-woken:
		}
	}
}

func respond(c echo.Context, body []byte, err error) error {
	if err != nil {
		return err
	}
	return Raw(c, http.StatusOK, body)
}

type parkedRequest struct {
	*parking
	conn    *countedConn
	hasConn atomic.Bool
	woken   atomic.Bool // since the last call of Answer
	header  http.Header
	waiter  Waiter
	empty   []byte // sent if waiter has no answer
	end     time.Time
}

var past = time.Unix(1, 0) // a deadline that ends a read at once

func (r *parkedRequest) wake() {
	r.woken.Store(true)
	if r.hasConn.Load() {
		r.conn.SetReadDeadline(past)
	}
}

// run waits, answers, and gives the connection back when the next request begins.
func (r *parkedRequest) run() {
	defer r.waiting.Done()
	unhook := context.AfterFunc(r.ctx, r.wake)
	body, isHere, err := r.await()
	unhook()
	r.waiter.Leave()
	if !isHere || !r.finish(r.response(body, err)) {
		r.conn.Close()
	}
}

// await waits for the answer by reading, because only a read notices that the client has left. isHere is false if the
// client has left.
func (r *parkedRequest) await() (body []byte, isHere bool, err error) {
	for {
		r.conn.SetReadDeadline(r.end)
		if !r.woken.Swap(false) { // if woken, do not read: the line above may have replaced the deadline that wake set
			err := r.conn.awaitRequest()
			if err == nil { // the next request is here, so the client no longer waits
				return r.empty, true, nil
			}
			if !errors.Is(err, os.ErrDeadlineExceeded) {
				return nil, false, nil
			}
			r.woken.Store(false)
		}
		if r.ctx.Err() != nil || !time.Now().Before(r.end) {
			return r.empty, true, nil
		}
		if body, err := r.answer(); body != nil || err != nil {
			return body, true, err
		}
	}
}

// answer calls Answer, and turns a panic into an error that no client sees.
func (r *parkedRequest) answer() (body []byte, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return r.waiter.Answer(r.ctx)
}

// finish sends the answer, and gives the connection back when the next request begins. It returns false if the
// connection must be closed instead.
func (r *parkedRequest) finish(response []byte) bool {
	r.conn.SetReadDeadline(time.Now().Add(idleTimeout))
	r.conn.SetWriteDeadline(time.Now().Add(writeTimeout))
	unhook := context.AfterFunc(r.ctx, func() {
		r.conn.SetReadDeadline(past)
		r.conn.SetWriteDeadline(time.Now().Add(time.Second))
	})
	defer unhook()
	_, err := r.conn.Write(response)
	if err != nil || r.ctx.Err() != nil || r.conn.awaitRequest() != nil || !unhook() {
		return false
	}
	r.conn.SetDeadline(time.Time{})
	select {
	case r.back <- r.conn:
		return true
	case <-r.closed:
		return false
	}
}

// response returns the response with body. If err is set, it logs err and returns the error response.
func (r *parkedRequest) response(body []byte, err error) []byte {
	header, status := r.header, http.StatusOK
	if err != nil {
		refusal := PublicError(err)
		level := slog.LevelError
		if refusal.Status == http.StatusServiceUnavailable {
			level = slog.LevelWarn
		}
		r.log.Log(r.ctx, level, "a waiting request failed", "request_id", header.Get(headerRequestID), "err", err)
		SetErrorHeaders(header, refusal)
		status, body = refusal.Status, refusal.AppendJSON(nil)
	}
	header["Content-Type"] = jsonType
	header.Set("Date", time.Now().UTC().Format(http.TimeFormat))
	var out bytes.Buffer
	response := http.Response{
		StatusCode: status, ProtoMajor: 1, ProtoMinor: 1, Header: header,
		ContentLength: int64(len(body)), Body: io.NopCloser(bytes.NewReader(body)),
	}
	_ = response.Write(&out) // writing to memory does not fail
	return out.Bytes()
}
