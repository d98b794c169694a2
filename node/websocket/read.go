package websocket

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"

	"github.com/gobwas/ws"
)

var errTooLarge = errors.New("the message is too large")

// readMessage reads the next message into c.buf, and answers the control frames before it. The error is a *[CloseError]
// if the peer closed the connection, or broke the protocol, and got our close.
func (c *Conn) readMessage() (Type, error) {
	state := ws.StateServerSide
	if c.client {
		state = ws.StateClientSide
	}
	var t Type // of a message whose first fragment has come
	for {
		h, err := ws.ReadHeader(c.in)
		switch {
		case errors.Is(err, ws.ErrHeaderLengthMSB), errors.Is(err, ws.ErrHeaderLengthUnexpected):
			return 0, c.refuse(CodeProtocol, err)
		case err != nil:
			return 0, err
		}
		if err := ws.CheckHeader(h, state); err != nil {
			return 0, c.refuse(CodeProtocol, err)
		}
		if h.OpCode.IsControl() {
			if err := c.readControl(h); err != nil {
				return 0, err
			}
			continue
		}
		if c.buf == nil {
			c.buf = messageBuffers.Get().(*bytes.Buffer)
			c.buf.Reset()
			t, state = Type(h.OpCode), state.Set(ws.StateFragmented)
		}
		before := c.buf.Len()
		if h.Length > c.opt.ReadLimit-int64(before) {
			return 0, c.refuse(CodeTooLarge, errTooLarge)
		}
		// The buffer grows with what arrives, whatever length the peer declares.
		if n, err := c.buf.ReadFrom(io.LimitReader(c.in, h.Length)); err != nil || n < h.Length {
			return 0, cmp.Or(err, io.ErrUnexpectedEOF)
		}
		if h.Masked {
			ws.Cipher(c.buf.Bytes()[before:], h.Mask, 0)
		}
		if h.Fin {
			return t, nil
		}
	}
}

// readControl reads a control frame. A ping gets its pong, a pong ends a wait, and a close gets our close; it is returned
// as a *[CloseError].
func (c *Conn) readControl(h ws.Header) error {
	payload := make([]byte, h.Length) // at most 125 bytes
	if _, err := io.ReadFull(c.in, payload); err != nil {
		return err
	}
	if h.Masked {
		ws.Cipher(payload, h.Mask, 0)
	}
	switch h.OpCode {
	case ws.OpPing:
		if !c.silent.Load() {
			_ = c.Send(encode(ws.OpPong, payload)) // a closed connection needs no pong
		}
		return nil
	case ws.OpPong:
		c.acceptPong(string(payload))
		return nil
	}
	if len(payload) == 1 {
		return c.refuse(CodeProtocol, errors.New("a close with half a code"))
	}
	code, reason := ws.ParseCloseFrameData(payload)
	answer := CodeNormal
	if len(payload) > 0 {
		if answer = int(code); !mayClose(answer) || !utf8.ValidString(reason) {
			return c.refuse(CodeProtocol, fmt.Errorf("a close with code %d", code))
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.queue.drop()
	c.end(closeFrame(answer, ""))
	if len(payload) == 0 {
		return &CloseError{Code: CodeNone, Remote: true}
	}
	return &CloseError{Code: answer, Reason: reason, Remote: true}
}

// mayClose reports whether a peer may close with a code: one of RFC 6455 §7.4.1, 1012 to 1014 of the IANA registry, or
// one of applications.
func mayClose(code int) bool {
	return 1000 <= code && code <= 1003 || 1007 <= code && code <= 1014 || 3000 <= code && code <= 4999
}

// refuse closes the connection with a code because of what the peer sent.
func (c *Conn) refuse(code int, cause error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.end(closeFrame(code, ""))
	return &CloseError{Code: code, cause: cause}
}
