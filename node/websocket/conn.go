package websocket

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gobwas/ws"
)

// Close codes of RFC 6455 §7.4.1, and 1013 of the IANA registry.
const (
	CodeNormal      = 1000
	CodeGoingAway   = 1001
	CodeProtocol    = 1002
	CodeNone        = 1005 // the peer sent no code
	CodeAbnormal    = 1006 // never sent: the connection ended without a close
	CodeTooLarge    = 1009
	CodeTryLater    = 1013       // the peer reads too slowly (MEW-Q3)
	reasonQueueFull = "too slow" // the reason with CodeTryLater
)

var (
	// ErrClosed means that the connection takes no more frames.
	ErrClosed = errors.New("websocket: closed")
	// ErrSlow means that the queue had no room for this frame. The connection is closing with 1013.
	ErrSlow = errors.New("websocket: the peer reads too slowly")

	errSilent = errors.New("the peer is silent")
)

// CloseError describes how a connection ended. It is the last error of Read.
type CloseError struct {
	Code   int
	Reason string // if Remote, the peer's text: untrusted
	Remote bool   // the peer closed the connection
	cause  error
}

func (e *CloseError) Error() string {
	text := "closed"
	if e.Remote {
		text = "closed by the peer"
	}
	if e.cause != nil {
		return fmt.Sprintf("websocket: %s with %d: %v", text, e.Code, e.cause)
	}
	return fmt.Sprintf("websocket: %s with %d", text, e.Code)
}

func (e *CloseError) Unwrap() error { return e.cause }

const (
	lingerTime  = 2 * time.Second // for the peer to read our close and answer it
	lingerBytes = 64 << 20        // the most that is read in that time
	slowGrace   = time.Second     // for a peer that overflowed its queue to take our close
)

// Conn is an open connection.
type Conn struct {
	opt    Options
	conn   net.Conn
	in     *bufio.Reader // frames from the peer
	waiter *waiter       // nil after Dial
	client bool          // opened by Dial, so our frames are masked
	silent atomic.Bool   // tests: pings get no pong

	activity peerActivity
	buf      *bytes.Buffer // the message that Read has returned; nil while Read waits

	mu      sync.Mutex
	queue   frameQueue
	writing bool        // a writer is running
	ending  bool        // the connection takes no more frames
	slow    bool        // the peer overflowed its queue; the writer must not extend the deadline
	fault   *CloseError // why the connection ends
	timer   *time.Timer // calls tick; nil if it never does
	pings   pingList
	writers sync.WaitGroup

	deadline time.Time // the last write deadline; only the writer uses it
}

// peerActivity records when the peer last sent something.
type peerActivity struct {
	start   time.Time    // of the connection; monotonic, because the wall clock may be set
	last    atomic.Int64 // when the peer last sent a byte, in nanoseconds since start
	reading atomic.Bool  // Read runs; otherwise what the peer sends does not arrive
}

func (a *peerActivity) note() { a.last.Store(int64(time.Since(a.start))) }
func (a *peerActivity) silence() time.Duration {
	return time.Since(a.start) - time.Duration(a.last.Load())
}

// notedConn notes when the peer sends something.
type notedConn struct {
	net.Conn
	activity *peerActivity
}

func (t notedConn) Read(p []byte) (int, error) {
	n, err := t.Conn.Read(p)
	if n > 0 {
		t.activity.note()
	}
	return n, err
}

// readBufferSize is small because every idle connection has a read buffer. A larger message is read directly into its
// own buffer.
const readBufferSize = 512

// open prepares the connection for messages, after the handshake. early is what the peer sent right after it.
func (c *Conn) open(early []byte) {
	c.activity.start = time.Now()
	var from io.Reader = notedConn{c.conn, &c.activity}
	if len(early) > 0 {
		from = io.MultiReader(bytes.NewReader(early), from)
	}
	c.in = bufio.NewReaderSize(from, readBufferSize)
	if c.opt.Ping > 0 {
		c.mu.Lock()
		c.timer = time.AfterFunc(c.opt.Ping, c.tick)
		c.mu.Unlock()
	}
}

// Ping asks the peer for a sign of life.
func (c *Conn) Ping() error { return c.Send(encode(ws.OpPing, nil)) }

// pingList has the pings of Confirm. The mutex of the connection guards it.
type pingList struct {
	waiting  []waitingPing // oldest first
	answered bool          // the peer has answered a ping
}

// waitingPing is a ping that the peer has not answered yet.
type waitingPing struct {
	name   string
	result chan error
}

// Confirm pings the peer and waits for the pong, which shows that the peer has read every frame before the ping. Only
// [Conn.Read] receives the pong, so if Read is not running when timeout has passed, Confirm waits as long again. If the
// peer has never answered a ping of Confirm, anything that arrives from the peer during the wait counts as the pong. If
// the connection ends first, the error says why.
func (c *Conn) Confirm(ctx context.Context, timeout time.Duration) error {
	began := time.Now()
	ping := waitingPing{rand.Text(), make(chan error, 1)}
	c.mu.Lock()
	c.pings.waiting = append(c.pings.waiting, ping)
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		c.pings.waiting = slices.DeleteFunc(c.pings.waiting, func(p waitingPing) bool { return p == ping })
		c.mu.Unlock()
	}()
	if err := c.Send(encode(ws.OpPing, []byte(ping.name))); err != nil {
		return err
	}
	for again := true; again; again = !c.activity.reading.Load() && !c.isClosing() {
		select {
		case err := <-ping.result:
			return err
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(timeout):
		}
	}
	c.mu.Lock()
	answered, ending := c.pings.answered, c.ending
	c.mu.Unlock()
	switch {
	case ending:
		return ErrClosed
	case answered, time.Since(began) <= c.activity.silence():
		return errSilent
	}
	return nil
}

// acceptPong ends the wait for a ping and for all earlier ones: a peer that got several pings need answer only the last
// (RFC 6455 §5.5.3).
func (c *Conn) acceptPong(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	last := slices.IndexFunc(c.pings.waiting, func(p waitingPing) bool { return p.name == name })
	c.pings.answered = c.pings.answered || last >= 0
	c.endPings(last+1, nil)
}

// endPings ends the wait for the first n pings. The caller holds c.mu.
func (c *Conn) endPings(n int, err error) {
	for _, p := range c.pings.waiting[:n] {
		p.result <- err
	}
	c.pings.waiting = c.pings.waiting[n:]
}

// tick pings a silent peer and drops a peer that stays silent. While Read is not running, it drops no peer, because what
// the peer sends does not arrive.
func (c *Conn) tick() {
	silence := c.activity.silence()
	if silence >= c.opt.Silence && c.activity.reading.Load() {
		c.abort(errSilent)
		return
	}
	if silence >= c.opt.Ping {
		_ = c.Ping()
		silence = 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timer != nil {
		c.timer.Reset(min(c.opt.Ping-silence, c.opt.Silence))
	}
}

// abort ends the connection without a close frame. Read returns soon after.
func (c *Conn) abort(cause error) {
	c.mu.Lock()
	c.ending = true
	if c.fault == nil {
		c.fault = &CloseError{Code: CodeAbnormal, cause: cause}
	}
	c.queue.drop()
	c.mu.Unlock()
	c.conn.Close()
}

// Drain reads and discards the rest of a connection that was closed.
func (c *Conn) Drain() {
	for {
		if _, _, err := c.Read(); err != nil {
			return
		}
	}
}

// Abort ends the connection without a close frame and drops the queue.
func (c *Conn) Abort() { c.abort(nil) }

// Close ends the connection with a code and a reason of at most 123 bytes, after the queued frames. It does not wait:
// Read returns when the peer has answered, or at most four seconds after the close frame was written. Only the first
// Close has an effect.
func (c *Conn) Close(code int, reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ending {
		return
	}
	c.fault = &CloseError{Code: code, Reason: reason}
	c.end(closeFrame(code, reason))
}

// Read returns the next message, which is valid until the next call. Only one goroutine may read, and it must read
// until it gets an error. The error is a *[CloseError]: the connection, and everything that belonged to it, has ended.
func (c *Conn) Read() (Type, []byte, error) {
	c.release()
	c.activity.reading.Store(true)
	defer c.activity.reading.Store(false)
	for {
		if c.waiter != nil && c.in.Buffered() == 0 {
			c.waiter.wait()
		}
		typ, err := c.readMessage()
		if err != nil {
			return 0, nil, c.finish(err)
		}
		if !c.isClosing() {
			return typ, c.buf.Bytes(), nil
		}
		c.release() // drop a message that came after our close
	}
}

// messageBuffers lends a buffer for a message while it is handled, so that an idle connection has none.
var messageBuffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

const maxPooled = 64 << 10 // bytes; larger buffers are not reused

// release gives back the buffer of the last message.
func (c *Conn) release() {
	if c.buf != nil && c.buf.Cap() <= maxPooled {
		messageBuffers.Put(c.buf)
	}
	c.buf = nil
}

func (c *Conn) isClosing() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ending
}

// finish ends the connection after a read failed with err, and returns the *[CloseError].
func (c *Conn) finish(err error) error {
	c.release()
	c.mu.Lock()
	end, ok := errors.AsType[*CloseError](err) // of the peer, or for what it sent
	if !ok {
		end = &CloseError{Code: CodeAbnormal, cause: err}
	}
	fault := cmp.Or(c.fault, end)
	c.fault = fault
	c.endPings(len(c.pings.waiting), fault)
	answered := fault.Remote || end.Remote && end.Code == fault.Code
	mustLinger := c.ending && !answered && fault.Code != CodeAbnormal // the peer has not answered our close
	c.ending = true
	if c.timer != nil {
		c.timer.Stop()
		c.timer = nil
	}
	c.mu.Unlock()
	if fault.Code == CodeAbnormal {
		c.conn.Close()
	}
	c.writers.Wait() // the close frame is written, or its deadline is over
	if mustLinger {
		c.linger()
	}
	c.conn.Close()
	return fault
}

// linger keeps reading after our close frame. Unread data would make the kernel reset the connection, and the peer
// would never see the close code.
func (c *Conn) linger() {
	if half, ok := c.conn.(interface{ CloseWrite() error }); ok {
		half.CloseWrite()
	}
	if c.conn.SetReadDeadline(time.Now().Add(lingerTime)) == nil {
		_, _ = io.CopyN(io.Discard, c.conn, lingerBytes) // the connection ends in any case
	}
}
