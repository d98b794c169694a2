package websocket

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/url"
	"testing"
	"testing/synctest"
	"time"
)

// oneListener accepts one connection.
type oneListener struct {
	conns chan net.Conn
}

func (l *oneListener) Accept() (net.Conn, error) {
	c, ok := <-l.conns
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}
func (l *oneListener) Close() error   { return nil }
func (l *oneListener) Addr() net.Addr { return &net.TCPAddr{} }

// pair connects a client and a server over a pipe, inside a synctest bubble.
func pair(t *testing.T, server, client Options) (s, c *Conn) {
	t.Helper()
	near, far := net.Pipe()
	l := &oneListener{conns: make(chan net.Conn, 1)}
	l.conns <- far
	accepted := make(chan *Conn, 1)
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s, err := Accept(w, r, server)
		if err != nil {
			t.Error(err)
		}
		accepted <- s
	})}
	go srv.Serve(l)
	c, err := Dial(t.Context(), func(context.Context, *url.URL) (net.Conn, error) { return near, nil }, "ws://pipe/", client)
	if err != nil {
		t.Fatal(err)
	}
	s = <-accepted
	t.Cleanup(func() { close(l.conns); srv.Close() })
	return s, c
}

func (c *Conn) readToEnd() *CloseError {
	for {
		if _, _, err := c.Read(); err != nil {
			return err.(*CloseError)
		}
	}
}

// TestPingKeeps: an idle connection stays open as long as the peer answers pings.
func TestPingKeeps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, c := pair(t, Options{}, Options{Ping: -1})
		ends := make(chan *CloseError, 2)
		go func() { ends <- s.readToEnd() }()
		go func() { ends <- c.readToEnd() }()
		time.Sleep(time.Hour)
		select {
		case end := <-ends:
			t.Fatalf("an idle connection ended: %v", end)
		default:
		}
		c.Close(CodeNormal, "")
		<-ends
		<-ends
	})
}

// TestSilence: a peer that sends nothing at all is dropped after 90 s (MEW-Q4), whether or not it reads.
func TestSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, c := pair(t, Options{}, Options{Ping: -1})
		start := time.Now()
		end := s.readToEnd() // nobody reads at the other end
		if end.Code != CodeAbnormal {
			t.Errorf("ended with %v, want 1006", end)
		}
		if took := time.Since(start); took > 2*time.Minute {
			t.Errorf("a dead peer was kept for %v", took)
		}
		c.Abort()
		c.readToEnd()
	})
}

// TestConfirm: Confirm returns when the peer has read all frames before it, and fails if the peer does not read or the
// connection ends.
func TestConfirm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, c := pair(t, Options{}, Options{Ping: -1})
		ended := make(chan *CloseError)
		go func() { ended <- c.readToEnd() }()
		confirm := func() error { return c.Confirm(t.Context(), 5*time.Second) }
		if err := confirm(); !errors.Is(err, errSilent) {
			t.Errorf("the peer does not read: %v", err)
		}
		broken := make(chan error)
		go func() { broken <- confirm() }()
		synctest.Wait()
		c.Abort()
		if end, err := <-ended, <-broken; err != end {
			t.Errorf("the connection ended with %v: %v", end, err)
		}
		s.readToEnd()

		s, c = pair(t, Options{}, Options{Ping: -1})
		go func() { ended <- c.readToEnd() }()
		go func() { ended <- s.readToEnd() }()
		if err := confirm(); err != nil || len(c.pings.waiting) != 0 {
			t.Errorf("the peer reads: %v, and %d pings wait", err, len(c.pings.waiting))
		}
		c.Close(CodeNormal, "")
		<-ended
		<-ended
	})
}

// TestConfirmWithoutPong: from a peer that has answered no ping yet, any frame within the whole wait confirms the
// frames before it, except the close of the connection. From a peer that has answered a ping, only a pong does.
func TestConfirmWithoutPong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, c := pair(t, Options{Ping: -1}, Options{Ping: -1})
		s.silent.Store(true)
		ends := make(chan *CloseError, 2)
		go func() { ends <- s.readToEnd() }()
		go func() { ends <- c.readToEnd() }()
		confirm := func(ctx context.Context, during func()) error {
			timer := time.AfterFunc(time.Second, during)
			defer timer.Stop()
			return c.Confirm(ctx, 5*time.Second)
		}
		talk := func() { s.Send(Text([]byte("a frame"))) }
		short, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		if err := confirm(short, talk); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the caller waits no longer: %v", err)
		}
		if err := confirm(t.Context(), func() {}); !errors.Is(err, errSilent) {
			t.Errorf("the peer sends nothing: %v", err)
		}
		if err := confirm(t.Context(), talk); err != nil {
			t.Errorf("the peer has never answered a ping, but sends: %v", err)
		}
		s.silent.Store(false)
		if err := confirm(t.Context(), talk); err != nil {
			t.Errorf("the peer answers: %v", err)
		}
		s.silent.Store(true)
		if err := confirm(t.Context(), talk); !errors.Is(err, errSilent) {
			t.Errorf("the peer has answered a ping before, and only sends: %v", err)
		}
		err := confirm(t.Context(), func() { s.Close(CodeGoingAway, "") })
		if closed, ok := errors.AsType[*CloseError](err); !ok || closed.Code != CodeGoingAway {
			t.Errorf("the peer closes: %v", err)
		}
		<-ends
		<-ends

		s, c = pair(t, Options{Ping: -1}, Options{Ping: -1})
		go func() { ends <- c.readToEnd() }()
		err = confirm(t.Context(), func() {
			talk()
			time.Sleep(3 * time.Second)
			c.Close(CodeNormal, "")
		})
		if !errors.Is(err, ErrClosed) {
			t.Errorf("the connection is closing at the end of the wait: %v", err)
		}
		c.Abort()
		<-ends
		s.readToEnd()
	})
}

// TestBusyReader: while nobody reads here, nothing that the peer sends arrives. That is not the silence of the peer:
// neither Confirm nor the connection fails. A reader that waits for a busy worker once cost the node its connection and
// the frames that waited on it.
func TestBusyReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, c := pair(t, Options{WriteTimeout: time.Hour}, Options{}) // a pipe has no buffer, as a socket has
		ends := make(chan *CloseError, 2)
		go func() { ends <- s.readToEnd() }()
		s.Send(Text([]byte("much work")))
		busy := make(chan struct{})
		go func() {
			c.Read()
			close(busy)
			time.Sleep(5*time.Minute + time.Second)
			ends <- c.readToEnd()
		}()
		<-busy
		if err := c.Confirm(t.Context(), 10*time.Second); err != nil {
			t.Errorf("the reader is busy: %v", err)
		}
		time.Sleep(time.Hour)
		c.Close(CodeNormal, "")
		for range 2 {
			if end := <-ends; end.Code != CodeNormal {
				t.Errorf("a connection ended with %v", end)
			}
		}
	})
}

// TestWriteTimeout: a peer that accepts no bytes for the write timeout is dropped, even if its queue is not full.
func TestWriteTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, c := pair(t, Options{}, Options{Ping: -1})
		start := time.Now()
		s.Send(Text([]byte("nobody reads this")))
		if end := s.readToEnd(); end.Code != CodeAbnormal {
			t.Errorf("ended with %v, want 1006", end)
		}
		if took := time.Since(start); took < 9*time.Second || took > 11*time.Second {
			t.Errorf("dropped after %v, want about 10 s", took)
		}
		c.Abort()
		c.readToEnd()
	})
}
