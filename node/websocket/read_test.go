package websocket

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/gobwas/ws"
)

// masked returns a frame of a client.
func masked(fin bool, op ws.OpCode, payload string) string {
	return string(ws.MustCompileFrame(ws.MaskFrameInPlace(ws.NewFrame(op, fin, []byte(payload)))))
}

// closing returns the payload of a close frame.
func closing(code uint16, reason string) string {
	return string(binary.BigEndian.AppendUint16(nil, code)) + reason
}

// read accepts a WebSocket whose client sends these bytes and then waits. It returns the messages and how the connection
// ended, and what the client got.
func read(t testing.TB, sent string, opt Options) (messages []string, end *CloseError, got []byte) {
	t.Helper()
	near, far := net.Pipe()
	c := &Conn{opt: opt.withDefaults(), conn: near}
	c.open(nil)
	answer := make(chan []byte, 1)
	go func() {
		data, _ := io.ReadAll(far)
		answer <- data
	}()
	go func() {
		_, _ = io.Copy(far, strings.NewReader(sent))
		_ = far.SetReadDeadline(time.Now().Add(200 * time.Millisecond)) // for the answer to the last frame
		time.Sleep(250 * time.Millisecond)
		far.Close()
	}()
	for {
		_, data, err := c.Read()
		if err != nil {
			if !errors.As(err, &end) {
				t.Fatalf("Read = %v", err)
			}
			return messages, end, <-answer
		}
		messages = append(messages, string(data))
	}
}

// TestFrames: what the RFC forbids closes the connection with 1002, and what it allows is read.
func TestFrames(t *testing.T) {
	t.Parallel()
	hello, bye := masked(true, ws.OpText, "hello"), masked(true, ws.OpClose, closing(1000, ""))
	for name, tt := range map[string]struct {
		sent   string
		read   string // the messages
		code   int
		remote bool
	}{
		"a message":                     {hello + bye, "hello", 1000, true},
		"fragments":                     {masked(false, ws.OpText, "a") + masked(true, ws.OpPing, "p") + masked(false, ws.OpContinuation, "") + masked(true, ws.OpContinuation, "b") + hello + bye, "ab,hello", 1000, true},
		"no code":                       {masked(true, ws.OpClose, ""), "", CodeNone, true},
		"service restart":               {masked(true, ws.OpClose, closing(1012, "again")), "", 1012, true},
		"bad gateway":                   {masked(true, ws.OpClose, closing(1014, "")), "", 1014, true},
		"an application's code":         {masked(true, ws.OpClose, closing(4403, "kicked")), "", 4403, true},
		"half a code":                   {masked(true, ws.OpClose, "\x03"), "", CodeProtocol, false},
		"a reserved code":               {masked(true, ws.OpClose, closing(1005, "")), "", CodeProtocol, false},
		"the code of no close":          {masked(true, ws.OpClose, closing(1006, "")), "", CodeProtocol, false},
		"an undefined code":             {masked(true, ws.OpClose, closing(2999, "")), "", CodeProtocol, false},
		"a reason that is no UTF-8":     {masked(true, ws.OpClose, closing(1000, "\xff")), "", CodeProtocol, false},
		"not masked":                    {"\x81\x02hi", "", CodeProtocol, false},
		"a reserved bit":                {"\xc1\x80\x00\x00\x00\x00", "", CodeProtocol, false},
		"a reserved opcode":             {"\x83\x80\x00\x00\x00\x00", "", CodeProtocol, false},
		"a long ping":                   {"\x89\xfe\x00\x7e\x00\x00\x00\x00", "", CodeProtocol, false},
		"a fragmented ping":             {masked(false, ws.OpPing, ""), "", CodeProtocol, false},
		"a continuation of nothing":     {masked(true, ws.OpContinuation, "b"), "", CodeProtocol, false},
		"a message inside of a message": {masked(false, ws.OpText, "a") + hello, "", CodeProtocol, false},
		"a negative length":             {"\x82\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00\x00\x00\x00", "", CodeProtocol, false},
		"too large":                     {"\x82\xff\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00", "", CodeTooLarge, false},
		"too large in fragments":        {masked(false, ws.OpText, strings.Repeat("x", 600)) + masked(true, ws.OpContinuation, strings.Repeat("x", 600)), "", CodeTooLarge, false},
		"half a message":                {hello[:8], "", CodeAbnormal, false},
		"nothing":                       {"", "", CodeAbnormal, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			messages, end, got := read(t, tt.sent, Options{ReadLimit: 1000, Ping: -1})
			if strings.Join(messages, ",") != tt.read || end.Code != tt.code || end.Remote != tt.remote {
				t.Errorf("read %q, ended with %v, remote %v", messages, end, end.Remote)
			}
			if tt.code == CodeProtocol && (len(got) < 4 || got[0] != 0x88 || binary.BigEndian.Uint16(got[2:]) != CodeProtocol) {
				t.Errorf("the peer got % x", got)
			}
		})
	}
}

// TestEarlyFrame: a frame that the server sends together with the end of its handshake is read.
func TestEarlyFrame(t *testing.T) {
	near, far := net.Pipe()
	go func() {
		late := &lateWriter{Conn: far}
		if _, err := ws.Upgrade(late); err == nil {
			late.text.Write(ws.MustCompileFrame(ws.NewTextFrame([]byte("early"))))
			_, _ = far.Write(late.text.Bytes())
		}
		_, _ = io.Copy(io.Discard, far)
	}()
	c, err := Dial(t.Context(), func(context.Context, *url.URL) (net.Conn, error) { return near, nil }, "ws://h.example/", Options{Ping: -1})
	if err != nil {
		t.Fatal(err)
	}
	if _, data, err := c.Read(); string(data) != "early" || err != nil {
		t.Errorf("Read = %q, %v", data, err)
	}
	c.Abort()
	c.Drain()
	far.Close()
}

// lateWriter keeps what is written.
type lateWriter struct {
	net.Conn
	text bytes.Buffer
}

func (w *lateWriter) Write(p []byte) (int, error) { return w.text.Write(p) }

// discardConn is a connection to a peer that has sent everything already.
type discardConn struct{ io.Reader }

func (discardConn) Write(p []byte) (int, error)      { return len(p), nil }
func (discardConn) Close() error                     { return nil }
func (discardConn) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (discardConn) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (discardConn) SetDeadline(time.Time) error      { return nil }
func (discardConn) SetReadDeadline(time.Time) error  { return nil }
func (discardConn) SetWriteDeadline(time.Time) error { return nil }

func FuzzRead(f *testing.F) {
	for _, seed := range []string{
		masked(true, ws.OpText, "hello"), masked(false, ws.OpText, "a") + masked(true, ws.OpContinuation, "b"), masked(true, ws.OpPing, "p"),
		masked(true, ws.OpClose, closing(1000, "bye")), "\x82\xff\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00", "\x81\x02hi",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c := &Conn{opt: Options{ReadLimit: 1000, Ping: -1}.withDefaults(), conn: discardConn{bytes.NewReader(data)}}
		c.open(nil)
		for size := 0; ; {
			_, message, err := c.Read()
			if err != nil {
				end, ok := errors.AsType[*CloseError](err)
				if !ok || end.Remote && end.Code != CodeNone && !mayClose(end.Code) {
					t.Errorf("Read = %v", err)
				}
				return
			}
			if size += len(message); len(message) > 1000 || size > len(data) {
				t.Fatalf("%d bytes came out of %d", size, len(data))
			}
		}
	})
}
