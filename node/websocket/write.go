package websocket

import (
	"sync"
	"time"
)

// Send queues a frame. It never waits: where the queue is full the connection is closed with 1013 and the error is
// [ErrSlow]; after a close it is [ErrClosed].
func (c *Conn) Send(f *Frame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.ending:
		return ErrClosed
	case c.frames >= c.opt.QueueFrames, c.bytes+len(f.bytes) > c.opt.QueueBytes && c.frames > 0:
		c.fault = &CloseError{Code: CodeTryLater, Reason: reasonQueueFull}
		c.drop()
		c.end(closeFrame(CodeTryLater, reasonQueueFull))
		c.hurry = true
		// It fails only on a connection that is gone, which the writer finds out.
		_ = c.conn.SetWriteDeadline(time.Now().Add(slowGrace))
		return ErrSlow
	}
	c.push(f)
	return nil
}

// push queues a frame and starts a writer where none runs. c.mu is held.
func (c *Conn) push(f *Frame) {
	if c.queue == nil {
		c.queue, c.spare = c.spare, nil
	}
	c.queue = append(c.queue, f)
	c.frames++
	c.bytes += len(f.bytes)
	if !c.writing {
		c.writing = true
		c.writers.Add(1)
		go c.write()
	}
}

// end queues the last frame. c.mu is held.
func (c *Conn) end(last *Frame) {
	if c.ending {
		return
	}
	c.ending = true
	c.push(last)
}

// drop forgets what is queued and not being written. c.mu is held.
func (c *Conn) drop() {
	for i, f := range c.queue {
		c.frames--
		c.bytes -= len(f.bytes)
		c.queue[i] = nil
	}
	c.queue = c.queue[:0]
}

const (
	batchSize = 64 << 10 // written at once
	direct    = 8 << 10  // a frame from this size on is written from where it is
	keepQueue = 64       // frames whose array is kept for the next batch
)

// batches are shared: a connection holds one only while it writes.
var batches = sync.Pool{New: func() any { return new(make([]byte, 0, batchSize)) }}

// write writes until nothing waits.
func (c *Conn) write() {
	defer c.writers.Done()
	batch := batches.Get().(*[]byte)
	defer batches.Put(batch)
	for {
		c.mu.Lock()
		frames := c.queue
		if len(frames) == 0 {
			c.writing = false
			if c.ending {
				c.lastWord()
			}
			c.mu.Unlock()
			return
		}
		c.queue, c.spare = c.spare, nil
		hurry := c.hurry
		c.mu.Unlock()

		size, err := c.writeAll(frames, *batch, hurry)

		c.mu.Lock()
		c.frames -= len(frames)
		c.bytes -= size
		clear(frames)
		if cap(frames) <= keepQueue {
			c.spare = frames[:0]
		}
		if err != nil {
			c.drop()
			c.writing = false
			c.mu.Unlock()
			c.abort(err)
			return
		}
		c.mu.Unlock()
	}
}

// lastWord gives the peer some time to read our close and answer it. c.mu is held.
func (c *Conn) lastWord() {
	// It fails only on a connection that is gone.
	_ = c.conn.SetReadDeadline(time.Now().Add(lingerTime))
}

// writeAll writes frames in as few writes as fit, and returns their size.
func (c *Conn) writeAll(frames []*Frame, batch []byte, hurry bool) (size int, err error) {
	if !hurry {
		c.extend()
	}
	batch = batch[:0]
	flush := func() {
		if len(batch) > 0 && err == nil {
			_, err = c.conn.Write(batch)
		}
		batch = batch[:0]
	}
	for _, f := range frames {
		size += len(f.bytes)
		if len(batch)+len(f.bytes)+4 > cap(batch) {
			flush()
		}
		switch {
		case c.client && f.bytes[1]&bitMasked == 0: // gorilla's own are masked
			batch = f.appendMasked(batch)
			if len(batch) > batchSize {
				flush()
				batch = make([]byte, 0, batchSize)
			}
		case len(f.bytes) >= direct:
			flush()
			if err == nil {
				_, err = c.conn.Write(f.bytes)
			}
		default:
			batch = append(batch, f.bytes...)
		}
	}
	flush()
	return size, err
}

// extend moves the deadline of writing, at most every tenth of it: that is cheaper than once for each write.
func (c *Conn) extend() {
	now := time.Now()
	if c.deadline.Sub(now) > c.opt.WriteTimeout*9/10 {
		return
	}
	c.deadline = now.Add(c.opt.WriteTimeout)
	// It fails only on a connection that is gone, which the write finds out.
	_ = c.conn.SetWriteDeadline(c.deadline)
}
