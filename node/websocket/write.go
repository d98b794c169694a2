package websocket

import (
	"sync"
	"time"
)

// Send queues a frame and never waits. If the queue is full, it closes the connection with 1013 and returns [ErrSlow].
// After a close it returns [ErrClosed].
func (c *Conn) Send(f *Frame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.ending:
		return ErrClosed
	case c.queue.frames >= c.opt.QueueFrames, c.queue.bytes+len(f.bytes) > c.opt.QueueBytes:
		c.fault = &CloseError{Code: CodeTryLater, Reason: reasonQueueFull}
		c.queue.drop()
		c.end(closeFrame(CodeTryLater, reasonQueueFull))
		c.slow = true
		// SetWriteDeadline fails only on a broken connection, which the writer notices.
		_ = c.conn.SetWriteDeadline(time.Now().Add(slowGrace))
		return ErrSlow
	}
	c.push(f)
	return nil
}

// push queues a frame, and starts a writer unless one runs. The caller holds c.mu.
func (c *Conn) push(f *Frame) {
	c.queue.push(f)
	if !c.writing {
		c.writing = true
		c.writers.Add(1)
		go c.write()
	}
}

// end queues the last frame of the connection. The caller holds c.mu.
func (c *Conn) end(last *Frame) {
	if c.ending {
		return
	}
	c.ending = true
	c.push(last)
}

// frameQueue has the unwritten frames of a connection. The mutex of the connection guards it.
type frameQueue struct {
	waiting []*Frame
	spare   []*Frame // empty; its array is reused for the next waiting frames
	frames  int      // how many are waiting or being written
	bytes   int      // total size of these frames
}

func (q *frameQueue) push(f *Frame) {
	if q.waiting == nil {
		q.waiting, q.spare = q.spare, nil
	}
	q.waiting = append(q.waiting, f)
	q.frames++
	q.bytes += len(f.bytes)
}

// take returns the waiting frames. The caller writes them and then calls finish.
func (q *frameQueue) take() []*Frame {
	frames := q.waiting
	q.waiting, q.spare = q.spare, nil
	return frames
}

// finish releases frames that take returned. size is their total size in bytes.
func (q *frameQueue) finish(frames []*Frame, size int) {
	q.frames -= len(frames)
	q.bytes -= size
	clear(frames)
	if cap(frames) <= keepQueue {
		q.spare = frames[:0]
	}
}

// drop removes the waiting frames. A frame that is being written stays until finish.
func (q *frameQueue) drop() {
	for i, f := range q.waiting {
		q.frames--
		q.bytes -= len(f.bytes)
		q.waiting[i] = nil
	}
	q.waiting = q.waiting[:0]
}

const (
	batchSize  = 64 << 10 // bytes per write
	directSize = 8 << 10  // frames of at least this size are written without a copy
	keepQueue  = 64       // frames; larger queue arrays are not reused
)

// batches lends a buffer for joining frames. A connection needs one only while it writes.
var batches = sync.Pool{New: func() any { return new(make([]byte, 0, batchSize)) }}

// write is the writer of the connection. It runs until no frame waits.
func (c *Conn) write() {
	defer c.writers.Done()
	batch := batches.Get().(*[]byte)
	defer batches.Put(batch)
	for {
		c.mu.Lock()
		if len(c.queue.waiting) == 0 {
			c.writing = false
			if c.ending { // give the peer some time to read our close and answer it
				_ = c.conn.SetReadDeadline(time.Now().Add(lingerTime)) // it fails only on a broken connection
			}
			c.mu.Unlock()
			return
		}
		frames := c.queue.take()
		if !c.slow {
			c.extendDeadline()
		}
		c.mu.Unlock()

		size, err := c.writeAll(frames, *batch)

		c.mu.Lock()
		c.queue.finish(frames, size)
		if err != nil {
			c.queue.drop()
			c.writing = false
			c.mu.Unlock()
			c.abort(err)
			return
		}
		c.mu.Unlock()
	}
}

// writeAll writes frames, the small ones joined, and returns their total size.
func (c *Conn) writeAll(frames []*Frame, batch []byte) (size int, err error) {
	batch = batch[:0]
	flush := func() {
		if len(batch) > 0 && err == nil {
			_, err = c.conn.Write(batch)
		}
		batch = batch[:0]
	}
	for _, f := range frames {
		size += len(f.bytes)
		if len(batch)+len(f.bytes)+maskSize > cap(batch) {
			flush()
		}
		switch {
		case c.client:
			batch = f.appendWithMask(batch)
			if len(batch) > batchSize {
				flush()
				batch = make([]byte, 0, batchSize) // drop the buffer that grew
			}
		case len(f.bytes) >= directSize:
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

// extendDeadline moves the write deadline, but at most once per tenth of the timeout, which is cheaper than moving it
// before each write. The caller holds c.mu.
func (c *Conn) extendDeadline() {
	now := time.Now()
	if c.deadline.Sub(now) > c.opt.WriteTimeout*9/10 {
		return
	}
	c.deadline = now.Add(c.opt.WriteTimeout)
	// SetWriteDeadline fails only on a broken connection, which the write notices.
	_ = c.conn.SetWriteDeadline(c.deadline)
}
