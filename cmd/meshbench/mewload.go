package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// crowd is one sender and its receivers on one server. Its clients are raw sockets that look at no more than they
// must: the load is to cost less than what it measures.
type crowd struct {
	server    *child
	sender    net.Conn
	receivers []net.Conn
	mark      string // in every envelope of this crowd
	size      int    // of an envelope
	digits    int    // where its number stands

	left  [maxWindow]atomic.Int64 // receivers that have not got the envelope in this place of the window
	slots chan struct{}           // free places
	took  [maxWindow]time.Time    // when the envelope in a place was sent
	sent  int64
	batch []byte

	readers sync.WaitGroup
	closing atomic.Bool
	faults  chan error
	mu      sync.Mutex
	lat     []time.Duration
}

const (
	maxWindow    = 1024
	envelopeSize = 256
	numberWidth  = 12
)

// dialSocket makes a WebSocket to a server; a token goes into the header.
func dialSocket(ctx context.Context, base, token string) (net.Conn, error) {
	u, err := url.Parse(base)
	if err != nil {
		return nil, err
	}
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", u.Host)
	if err != nil {
		return nil, err
	}
	req := "GET /ws HTTP/1.1\r\nHost: " + u.Host + "\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
	if token != "" {
		req += "Authorization: Bearer " + token + "\r\n"
	}
	if _, err := io.WriteString(conn, req+"\r\n"); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	// Byte by byte, so that no frame behind the answer is lost in a buffer.
	head := make([]byte, 0, 256)
	for one := make([]byte, 1); !bytes.HasSuffix(head, []byte("\r\n\r\n")); head = append(head, one[0]) {
		if _, err := io.ReadFull(conn, one); err != nil || len(head) > 4096 {
			return nil, errors.Join(fmt.Errorf("handshake: %w", err), conn.Close())
		}
	}
	if resp, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(head)), nil); err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		return nil, errors.Join(fmt.Errorf("the handshake was answered with %.60q", head), conn.Close())
	}
	return conn, nil
}

// gather connects a sender and n receivers. Where they have tokens it waits for each one's welcome: who has the
// answer to its handshake alone may not be in the space yet.
func gather(ctx context.Context, server *child, n int, token func(int) string) (*crowd, error) {
	welcomed := token != nil
	if !welcomed {
		token = func(int) string { return "" }
	}
	c := &crowd{server: server, slots: make(chan struct{}, maxWindow), faults: make(chan error, n+1)}
	c.mark = fmt.Sprintf("bench-%08x-", time.Now().UnixNano()&0xffffffff)
	c.size, c.digits = len(c.envelope(0)), strings.Index(c.envelope(0), c.mark)+len(c.mark)
	for i := range n + 1 {
		conn, err := dialSocket(ctx, server.URL, token(i))
		if err != nil {
			c.close()
			return nil, err
		}
		in := bufio.NewReaderSize(conn, 64<<10)
		if i == 0 {
			c.sender = conn
		} else {
			c.receivers = append(c.receivers, conn)
		}
		if welcomed {
			if _, err := in.Peek(1); err != nil {
				c.close()
				return nil, fmt.Errorf("no welcome came: %w", err)
			}
		}
		c.readers.Go(func() {
			if i == 0 {
				io.Copy(io.Discard, in)
			} else if err := c.receive(in); err != nil {
				c.faults <- err
			}
		})
	}
	return c, nil
}

func (c *crowd) close() {
	c.closing.Store(true)
	if c.sender != nil {
		c.sender.Close()
	}
	for _, r := range c.receivers {
		r.Close()
	}
	c.readers.Wait()
}

// envelope makes the chat envelope with this number, complete, so that nothing is filled in.
func (c *crowd) envelope(n int64) string {
	number := strconv.FormatInt(n, 10)
	number = strings.Repeat("0", numberWidth-len(number)) + number
	head := `{"protocol":"mew/v0.4","id":"` + c.mark + number + `","ts":"2026-01-01T00:00:00.000Z","from":"p0","kind":"chat","payload":{"text":"`
	return head + strings.Repeat("x", max(0, envelopeSize-len(head)-3)) + `"}}`
}

// receive counts the envelopes of the crowd and holds them to their order.
func (c *crowd) receive(in *bufio.Reader) error {
	next := int64(-1)
	for {
		head, err := in.Peek(2)
		if err != nil {
			return c.ended(err)
		}
		if head[0] == closeFrame {
			reason, _ := in.Peek(2 + int(head[1]&0x7f)) // what there is of it
			return fmt.Errorf("the server closed a connection: % x", reason)
		}
		size, skip := int(head[1]&0x7f), 2
		switch size {
		case 126:
			if head, err = in.Peek(4); err != nil {
				return c.ended(err)
			}
			size, skip = int(binary.BigEndian.Uint16(head[2:])), 4
		case 127:
			if head, err = in.Peek(10); err != nil {
				return c.ended(err)
			}
			size, skip = int(binary.BigEndian.Uint64(head[2:])), 10
		}
		if size != c.size {
			if _, err := in.Discard(skip + size); err != nil {
				return c.ended(err)
			}
			continue
		}
		frame, err := in.Peek(skip + size)
		if err != nil {
			return c.ended(err)
		}
		n, ok := c.number(frame[skip:])
		if _, err := in.Discard(skip + size); err != nil {
			return c.ended(err)
		}
		if !ok {
			continue
		}
		if next >= 0 && n != next {
			return fmt.Errorf("envelope %d came where %d should have", n, next)
		}
		next = n + 1
		c.got(n)
	}
}

const closeFrame = 0x88

// ended is the end of a connection: a fault, unless it is ours.
func (c *crowd) ended(err error) error {
	if c.closing.Load() {
		return nil
	}
	return fmt.Errorf("a connection ended: %w", err)
}

func (c *crowd) number(envelope []byte) (int64, bool) {
	if string(envelope[c.digits-len(c.mark):c.digits]) != c.mark {
		return 0, false
	}
	n := int64(0)
	for _, d := range envelope[c.digits : c.digits+numberWidth] {
		n = 10*n + int64(d-'0')
	}
	return n, true
}

// got counts one delivery; the last one frees the place in the window.
func (c *crowd) got(n int64) {
	slot := n % maxWindow
	if c.left[slot].Add(-1) > 0 {
		return
	}
	took := time.Since(c.took[slot])
	c.mu.Lock()
	c.lat = append(c.lat, took)
	c.mu.Unlock()
	c.slots <- struct{}{}
}

// run keeps w envelopes under way for d.
func (c *crowd) run(ctx context.Context, w int, d time.Duration) (sample, error) {
	w = min(w, maxWindow)
	before, start, first := c.begin(), time.Now(), c.sent
	free := w
	for time.Since(start) < d && ctx.Err() == nil {
		if free == 0 {
			if err := c.await(1); err != nil {
				return sample{}, err
			}
			free = 1
		}
		for free < w && len(c.slots) > 0 {
			<-c.slots
			free++
		}
		if err := c.send(free); err != nil {
			return sample{}, err
		}
		free = 0
	}
	if err := c.await(w - free); err != nil {
		return sample{}, err
	}
	return c.tally(before, start, first), ctx.Err()
}

// paced sends w envelopes at once as often as makes rate deliveries a second, for d, whole periods of it. One that is
// late is made up for: the next are sent at once, as long as no more than maxWindow are under way.
func (c *crowd) paced(ctx context.Context, w int, d time.Duration, rate int) (sample, error) {
	w = min(w, maxWindow)
	period := time.Duration(float64(w*len(c.receivers)) / float64(rate) * float64(time.Second))
	batches := int((d + period - 1) / period)
	before, start, first := c.begin(), time.Now(), c.sent
	free := maxWindow
	for i := range batches {
		if err := pause(ctx, time.Until(start.Add(time.Duration(i)*period))); err != nil {
			return sample{}, err
		}
		if need := w - free; need > 0 {
			if err := c.await(need); err != nil {
				return sample{}, err
			}
			free += need
		}
		for len(c.slots) > 0 {
			<-c.slots
			free++
		}
		if err := c.send(w); err != nil {
			return sample{}, err
		}
		free -= w
	}
	if err := c.await(maxWindow - free); err != nil {
		return sample{}, err
	}
	if err := pause(ctx, time.Until(start.Add(time.Duration(batches)*period))); err != nil {
		return sample{}, err
	}
	return c.tally(before, start, first), nil
}

// begin forgets the round before, and returns what the server has used up to now.
func (c *crowd) begin() time.Duration {
	for len(c.slots) > 0 {
		<-c.slots
	}
	c.mu.Lock()
	c.lat = nil
	c.mu.Unlock()
	return c.server.cpu()
}

// tally sums up a round.
func (c *crowd) tally(before time.Duration, start time.Time, first int64) sample {
	s := sample{Ops: int(c.sent-first) * len(c.receivers), Elapsed: time.Since(start), CPU: c.server.cpu() - before}
	c.mu.Lock()
	defer c.mu.Unlock()
	slices.Sort(c.lat)
	s.P50, s.P99 = quantile(c.lat, 0.50), quantile(c.lat, 0.99)
	return s
}

// send writes the next n envelopes at once.
func (c *crowd) send(n int) error {
	c.batch = c.batch[:0]
	for range n {
		c.batch = c.append(c.batch)
	}
	if _, err := c.sender.Write(c.batch); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	return nil
}

// await waits until n envelopes are everywhere.
func (c *crowd) await(n int) error {
	late := time.NewTimer(30 * time.Second)
	defer late.Stop()
	for range n {
		select {
		case <-c.slots:
		case err := <-c.faults:
			return err
		case <-late.C:
			for i := max(0, c.sent-maxWindow); i < c.sent; i++ {
				if missing := c.left[i%maxWindow].Load(); missing > 0 {
					return fmt.Errorf("envelope %d of %d has not arrived at %d receivers in 30 s", i, c.sent, missing)
				}
			}
			return errors.New("what arrived was not counted")
		}
	}
	return nil
}

// append adds the frame of the next envelope, masked with zeros.
func (c *crowd) append(dst []byte) []byte {
	text := c.envelope(c.sent)
	slot := c.sent % maxWindow
	c.took[slot] = time.Now()
	c.left[slot].Store(int64(len(c.receivers)))
	c.sent++
	dst = append(dst, 0x81, 0x80|126)
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(text)))
	dst = append(dst, 0, 0, 0, 0)
	return append(dst, text...)
}
