package client

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
)

func TestInProcess(t *testing.T) {
	rt := InProcess(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if r.RemoteAddr != "127.0.0.1:0" || r.Host != "own.example" || r.RequestURI != "/v1/x?y=z" {
			t.Errorf("the handler sees %s %s %s", r.RemoteAddr, r.Host, r.RequestURI)
		}
		w.Header().Set("X-Test", "1")
		w.WriteHeader(http.StatusTeapot)
		w.Header().Set("X-Late", "1")
		w.Write(bytes.ToUpper(body))
	}))
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://own.example/v1/x?y=z", strings.NewReader("hello"))
	resp, err := rt.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	data, err := ReadAll(resp, 100)
	if err != nil || string(data) != "HELLO" || resp.StatusCode != http.StatusTeapot {
		t.Errorf("RoundTrip() = %d %q, %v", resp.StatusCode, data, err)
	}
	if resp.Header.Get("X-Test") != "1" || resp.Header.Get("X-Late") != "" {
		t.Errorf("headers %v", resp.Header)
	}
}

// TestInProcessEnded checks that a request whose context has ended does not reach the handler.
func TestInProcessEnded(t *testing.T) {
	rt := InProcess(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the handler runs") }))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 100 {
		if resp, err := rt.RoundTrip(getRequest(t, "http://own.example/").WithContext(ctx)); !errors.Is(err, context.Canceled) {
			t.Fatalf("RoundTrip() = %v, %v, want context.Canceled", resp, err)
		}
	}
}

func TestInProcessStreams(t *testing.T) {
	next, ended := make(chan struct{}), make(chan struct{})
	rt := InProcess(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer close(ended)
		io.WriteString(w, "one")
		<-next
		io.WriteString(w, "two")
		<-r.Context().Done() // until the caller has closed the answer
	}))
	resp, err := rt.RoundTrip(getRequest(t, "http://own.example/"))
	if err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 3)
	for i, want := range []string{"one", "two"} {
		if i == 1 {
			close(next)
		}
		if _, err := io.ReadFull(resp.Body, buf); err != nil || string(buf) != want {
			t.Fatalf("read %q, %v; want %q", buf, err, want)
		}
	}
	resp.Body.Close()
	<-ended
}

func TestInProcessFailures(t *testing.T) {
	t.Run("panic", func(t *testing.T) {
		resp, err := InProcess(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("boom") })).RoundTrip(getRequest(t, "http://own.example/"))
		if err != nil || resp.StatusCode != http.StatusInternalServerError {
			t.Fatalf("RoundTrip() = %v, %v; want a 500", resp, err)
		}
		resp.Body.Close()
	})
	t.Run("panic after the start", func(t *testing.T) {
		resp, err := InProcess(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(200); panic("boom") })).RoundTrip(getRequest(t, "http://own.example/"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ReadAll(resp, 10); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("ReadAll() = %v, want an unexpected end", err)
		}
	})
	t.Run("the caller gives up", func(t *testing.T) {
		ended := make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		_, err := InProcess(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			cancel()
			<-r.Context().Done()
			close(ended)
		})).RoundTrip(getRequest(t, "http://own.example/").WithContext(ctx))
		if !errors.Is(err, context.Canceled) {
			t.Errorf("RoundTrip() = %v, want canceled", err)
		}
		<-ended
	})
}
