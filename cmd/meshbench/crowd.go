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
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// chatter is what is sent to a server, and what comes of it.
type chatter struct {
	path string // of the WebSocket
	// message makes the message with a mark and a number, of messageSize bytes and complete, so that a server has nothing
	// to fill in but what its protocol has it add.
	message func(mark, number string) string
	// delivered is the message as receivers get it, or one that is as long and has the mark in the same place. nil: as it
	// was sent.
	delivered func(sent string) string
	welcomed  bool // the server greets who is connected
}

// crowd is one sender and its receivers on one server. Its clients are raw sockets that look at no more than they
// must: the load is to cost less than what it measures.
type crowd struct {
	chatter
	server    *child
	sender    net.Conn
	receivers []net.Conn
	mark      string // in every message of this crowd
	size      int    // of a message at a receiver
	digits    int    // where its number stands there

	left  [maxWindow]atomic.Int64 // receivers that have not got the message in this place of the window
	slots chan struct{}           // free places
	took  [maxWindow]time.Time    // when the message in a place was sent
	sent  int64
	batch []byte

	readers sync.WaitGroup
	closing atomic.Bool
	faults  chan error
	mu      sync.Mutex
	lat     []time.Duration
}

const (
	maxWindow   = 1024
	messageSize = 256
	numberWidth = 12
)

// filled ends a message with as many x as it lacks.
func filled(head, tail string) string {
	return head + strings.Repeat("x", max(0, messageSize-len(head)-len(tail))) + tail
}

// dialSocket makes a WebSocket to a server; a token goes into the header.
func dialSocket(ctx context.Context, base, path, token string) (net.Conn, error) {
	u, err := url.Parse(base)
	if err != nil {
		return nil, err
	}
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", u.Host)
	if err != nil {
		return nil, err
	}
	req := "GET " + path + " HTTP/1.1\r\nHost: " + u.Host + "\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
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

// gather connects a sender and n receivers, to a place of the server for each. Where the server greets it waits for each
// one's welcome: who has the answer to its handshake alone may not be connected to the others yet.
func gather(ctx context.Context, to *host, what chatter, n int) (*crowd, error) {
	c := &crowd{chatter: what, server: to.child, slots: make(chan struct{}, maxWindow), faults: make(chan error, n+1)}
	c.mark = fmt.Sprintf("bench-%08x-", time.Now().UnixNano()&0xffffffff)
	sample := c.next()
	if c.delivered != nil {
		sample = c.delivered(sample)
	}
	c.size, c.digits = len(sample), strings.Index(sample, c.mark)+len(c.mark)
	for i := range n + 1 {
		conn, err := dialSocket(ctx, to.URL, c.path, to.token(i))
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
		if c.welcomed {
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

// next makes the message that is sent next.
func (c *crowd) next() string {
	return c.message(c.mark, fmt.Sprintf("%0*d", numberWidth, c.sent))
}

// receive counts the messages of the crowd and holds them to their order.
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
			return fmt.Errorf("message %d came where %d should have", n, next)
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

func (c *crowd) number(message []byte) (int64, bool) {
	if string(message[c.digits-len(c.mark):c.digits]) != c.mark {
		return 0, false
	}
	n := int64(0)
	for _, d := range message[c.digits : c.digits+numberWidth] {
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

// run keeps w messages under way for d.
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

// paced sends w messages at once as often as makes rate deliveries a second, for d, whole periods of it. One that is
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

// send writes the next n messages at once.
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

// await waits until n messages are everywhere.
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
					return fmt.Errorf("message %d of %d has not arrived at %d receivers in 30 s", i, c.sent, missing)
				}
			}
			return errors.New("what arrived was not counted")
		}
	}
	return nil
}

// append adds the frame of the next message, masked with zeros.
func (c *crowd) append(dst []byte) []byte {
	text := c.next()
	slot := c.sent % maxWindow
	c.took[slot] = time.Now()
	c.left[slot].Store(int64(len(c.receivers)))
	c.sent++
	dst = append(dst, 0x81, 0x80|126)
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(text)))
	dst = append(dst, 0, 0, 0, 0)
	return append(dst, text...)
}
