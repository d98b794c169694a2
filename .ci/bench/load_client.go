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

// messageKind describes the messages that a load client sends to one kind of server, and how that server delivers them.
type messageKind struct {
	path string // path of the WebSocket
	// message returns a message of messageSize bytes that contains the mark of the load client and the number of the
	// message. It has every field that the protocol lets the sender set, so that the server adds as little as possible.
	message func(mark, number string) string
	// delivered returns a stand-in for the message as receivers get it: equally long, with the mark in the same place. It
	// is nil if receivers get the message as it was sent.
	delivered func(sent string) string
	greets    bool // the server greets each new connection
}

// loadClient is one sender and its receivers on one server. It uses raw sockets and parses as little as possible,
// because making the load must cost less processor time than the server that it measures.
type loadClient struct {
	messageKind
	server    *child
	sender    net.Conn
	receivers []net.Conn
	mark      string // in every message of this load client
	size      int    // size of a message at a receiver
	numberAt  int    // offset of the message number in a message at a receiver

	// The message with number n occupies slot n modulo maxWindow until every receiver has it.
	missing   [maxWindow]atomic.Int64 // by slot: how many receivers do not have the message yet
	sentAt    [maxWindow]time.Time    // by slot: when the message was sent
	freeSlots chan struct{}           // has a value for each slot that has become free
	sent      int64                   // number of messages sent
	batch     []byte                  // reused by send

	readers sync.WaitGroup
	closing atomic.Bool
	faults  chan error // from the readers
	mu      sync.Mutex
	delays  []time.Duration // from sending a message to its last delivery
}

const (
	maxWindow   = 1024 // messages in flight
	messageSize = 256  // bytes
	numberWidth = 12   // digits of a message number

	maxHandshake = 4096 // bytes of the response that opens a WebSocket
)

// padMessage joins head and tail with as many x as the message needs to have messageSize bytes.
func padMessage(head, tail string) string {
	return head + strings.Repeat("x", max(0, messageSize-len(head)-len(tail))) + tail
}

// dialSocket opens a WebSocket to a server. A token that is not empty is sent as a bearer token.
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
	// Read byte by byte, so that no frame after the response is lost in a buffer.
	head := make([]byte, 0, 256)
	for next := make([]byte, 1); !bytes.HasSuffix(head, []byte("\r\n\r\n")); head = append(head, next[0]) {
		_, err := io.ReadFull(conn, next)
		if err == nil && len(head) >= maxHandshake {
			err = fmt.Errorf("the header of the response is larger than %d bytes", maxHandshake)
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("handshake: %w", err), conn.Close())
		}
	}
	if resp, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(head)), nil); err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		return nil, errors.Join(fmt.Errorf("the server answered the handshake with %.60q", head), conn.Close())
	}
	return conn, nil
}

// newLoadClient connects a sender and n receivers. If the server greets new connections, newLoadClient waits for the
// greetings, because a server may finish the handshake before it is ready to deliver messages.
func newLoadClient(ctx context.Context, to *host, kind messageKind, n int) (*loadClient, error) {
	c := &loadClient{messageKind: kind, server: to.child, freeSlots: make(chan struct{}, maxWindow), faults: make(chan error, n+1)}
	c.mark = fmt.Sprintf("bench-%08x-", time.Now().UnixNano()&0xffffffff)
	example := c.nextMessage()
	if c.delivered != nil {
		example = c.delivered(example)
	}
	c.size, c.numberAt = len(example), strings.Index(example, c.mark)+len(c.mark)
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
		if c.greets {
			if _, err := in.Peek(1); err != nil {
				c.close()
				return nil, fmt.Errorf("the server sent no greeting: %w", err)
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

func (c *loadClient) close() {
	c.closing.Store(true)
	if c.sender != nil {
		c.sender.Close()
	}
	for _, r := range c.receivers {
		r.Close()
	}
	c.readers.Wait()
}

func (c *loadClient) nextMessage() string {
	return c.message(c.mark, fmt.Sprintf("%0*d", numberWidth, c.sent))
}

// receive reads frames until the connection ends. It counts the messages of this load client and checks their order.
func (c *loadClient) receive(in *bufio.Reader) error {
	next := int64(-1) // number of the message to come next; -1 before the first one
	for {
		head, err := in.Peek(2)
		if err != nil {
			return c.connectionError(err)
		}
		if head[0] == closeFrame {
			reason, _ := in.Peek(2 + int(head[1]&0x7f)) // as much as arrived
			return fmt.Errorf("the server closed a connection: % x", reason)
		}
		size, skip := int(head[1]&0x7f), 2
		switch size {
		case 126:
			if head, err = in.Peek(4); err != nil {
				return c.connectionError(err)
			}
			size, skip = int(binary.BigEndian.Uint16(head[2:])), 4
		case 127:
			if head, err = in.Peek(10); err != nil {
				return c.connectionError(err)
			}
			size, skip = int(binary.BigEndian.Uint64(head[2:])), 10
		}
		if size != c.size { // not one of our messages: a greeting, for example
			if _, err := in.Discard(skip + size); err != nil {
				return c.connectionError(err)
			}
			continue
		}
		frame, err := in.Peek(skip + size)
		if err != nil {
			return c.connectionError(err)
		}
		n, ok := c.parseNumber(frame[skip:])
		if _, err := in.Discard(skip + size); err != nil {
			return c.connectionError(err)
		}
		if !ok {
			continue
		}
		if next >= 0 && n != next {
			return fmt.Errorf("message %d arrived, want %d", n, next)
		}
		next = n + 1
		c.countDelivery(n)
	}
}

const closeFrame = 0x88 // the first byte of a close frame

// connectionError returns the error for a connection that ended: nil if we closed it.
func (c *loadClient) connectionError(err error) error {
	if c.closing.Load() {
		return nil
	}
	return fmt.Errorf("a connection ended: %w", err)
}

// parseNumber returns the number of a message, and whether the message has our mark.
func (c *loadClient) parseNumber(message []byte) (int64, bool) {
	if string(message[c.numberAt-len(c.mark):c.numberAt]) != c.mark {
		return 0, false
	}
	n := int64(0)
	for _, d := range message[c.numberAt : c.numberAt+numberWidth] {
		n = 10*n + int64(d-'0')
	}
	return n, true
}

// countDelivery counts one delivery of message n. The last delivery of a message frees its slot.
func (c *loadClient) countDelivery(n int64) {
	slot := n % maxWindow
	if c.missing[slot].Add(-1) > 0 {
		return
	}
	delay := time.Since(c.sentAt[slot])
	c.mu.Lock()
	c.delays = append(c.delays, delay)
	c.mu.Unlock()
	c.freeSlots <- struct{}{}
}

// run keeps w messages in flight for d.
func (c *loadClient) run(ctx context.Context, w int, d time.Duration) (sample, error) {
	w = min(w, maxWindow)
	cpuBefore, start, first := c.begin(), time.Now(), c.sent
	free := w
	for time.Since(start) < d && ctx.Err() == nil {
		if free == 0 {
			if err := c.awaitSlots(1); err != nil {
				return sample{}, err
			}
			free = 1
		}
		for free < w && len(c.freeSlots) > 0 {
			<-c.freeSlots
			free++
		}
		if err := c.send(free); err != nil {
			return sample{}, err
		}
		free = 0
	}
	if err := c.awaitSlots(w - free); err != nil {
		return sample{}, err
	}
	return c.finish(cpuBefore, start, first), ctx.Err()
}

// runAtRate sends a batch of w messages per period, for at least d, so that the receivers together get rate messages
// per second. A late batch is sent at once, but at most maxWindow messages are in flight.
func (c *loadClient) runAtRate(ctx context.Context, w int, d time.Duration, rate int) (sample, error) {
	w = min(w, maxWindow)
	period := time.Duration(float64(w*len(c.receivers)) / float64(rate) * float64(time.Second))
	batches := int((d + period - 1) / period)
	cpuBefore, start, first := c.begin(), time.Now(), c.sent
	free := maxWindow
	for i := range batches {
		if err := sleep(ctx, time.Until(start.Add(time.Duration(i)*period))); err != nil {
			return sample{}, err
		}
		if need := w - free; need > 0 {
			if err := c.awaitSlots(need); err != nil {
				return sample{}, err
			}
			free += need
		}
		for len(c.freeSlots) > 0 {
			<-c.freeSlots
			free++
		}
		if err := c.send(w); err != nil {
			return sample{}, err
		}
		free -= w
	}
	if err := c.awaitSlots(maxWindow - free); err != nil {
		return sample{}, err
	}
	if err := sleep(ctx, time.Until(start.Add(time.Duration(batches)*period))); err != nil {
		return sample{}, err
	}
	return c.finish(cpuBefore, start, first), nil
}

// begin starts a round: it discards the delays of the previous round and returns the server's processor time so far.
func (c *loadClient) begin() time.Duration {
	for len(c.freeSlots) > 0 {
		<-c.freeSlots
	}
	c.mu.Lock()
	c.delays = nil
	c.mu.Unlock()
	return c.server.cpu()
}

// finish returns the sample of a round. start is when the round began, first is the number of its first message, and
// cpuBefore is the result of begin.
func (c *loadClient) finish(cpuBefore time.Duration, start time.Time, first int64) sample {
	s := sample{Ops: int(c.sent-first) * len(c.receivers), Elapsed: time.Since(start), CPU: c.server.cpu() - cpuBefore}
	c.mu.Lock()
	defer c.mu.Unlock()
	slices.Sort(c.delays)
	s.P50, s.P99 = quantile(c.delays, 0.50), quantile(c.delays, 0.99)
	return s
}

// send sends the next n messages in one write.
func (c *loadClient) send(n int) error {
	c.batch = c.batch[:0]
	for range n {
		c.batch = c.appendFrame(c.batch)
	}
	if _, err := c.sender.Write(c.batch); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	return nil
}

// awaitSlots waits until n more slots are free: until n more messages have arrived at every receiver.
func (c *loadClient) awaitSlots(n int) error {
	timeout := time.After(30 * time.Second)
	for range n {
		select {
		case <-c.freeSlots:
		case err := <-c.faults:
			return err
		case <-timeout:
			for i := max(0, c.sent-maxWindow); i < c.sent; i++ {
				if missing := c.missing[i%maxWindow].Load(); missing > 0 {
					return fmt.Errorf("message %d of %d has not arrived at %d receivers in 30 s", i, c.sent, missing)
				}
			}
			return errors.New("every message arrived, but fewer slots became free than expected")
		}
	}
	return nil
}

// appendFrame adds the frame of the next message to dst. The frame's mask is zero, so that the text needs no masking.
func (c *loadClient) appendFrame(dst []byte) []byte {
	text := c.nextMessage()
	slot := c.sent % maxWindow
	c.sentAt[slot] = time.Now()
	c.missing[slot].Store(int64(len(c.receivers)))
	c.sent++
	dst = append(dst, 0x81, 0x80|126) // a whole text message, masked; its length follows in two bytes
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(text)))
	dst = append(dst, 0, 0, 0, 0)
	return append(dst, text...)
}
