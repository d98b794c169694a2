package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
)

// InProcess returns a transport that passes each request to h in this process, as if it came from loopback. Answers are
// streamed. As with net/http, a request does not reach the handler after its context has ended, and a running handler
// is not interrupted. The request's context also ends when the caller closes the body of the answer.
func InProcess(h http.Handler) http.RoundTripper { return inProcess{h} }

type inProcess struct{ handler http.Handler }

func (p inProcess) RoundTrip(req *http.Request) (*http.Response, error) {
	if err := req.Context().Err(); err != nil {
		if req.Body != nil {
			req.Body.Close()
		}
		return nil, err
	}
	ctx, cancel := context.WithCancel(req.Context())
	in := req.Clone(ctx)
	in.RequestURI = req.URL.RequestURI()
	in.RemoteAddr = "127.0.0.1:0"
	in.Proto, in.ProtoMajor, in.ProtoMinor = "HTTP/1.1", 1, 1
	if in.Host == "" {
		in.Host = req.URL.Host
	}
	if in.Body == nil {
		in.Body = http.NoBody
	}
	if in.Header == nil {
		in.Header = http.Header{}
	}
	r, w := io.Pipe()
	answer := &inProcessAnswer{header: http.Header{}, pipe: w, ready: make(chan *http.Response, 1)}
	answer.response = &http.Response{
		Proto: in.Proto, ProtoMajor: 1, ProtoMinor: 1, ContentLength: -1, Request: req,
		Body: &body{r, cancel},
	}
	go answer.run(p.handler, in)
	select {
	case resp := <-answer.ready:
		return resp, nil
	case <-ctx.Done():
		cancel()
		r.Close()
		return nil, ctx.Err()
	}
}

// inProcessAnswer is the [http.ResponseWriter] of a handler. It passes the response to the caller.
type inProcessAnswer struct {
	header   http.Header
	pipe     *io.PipeWriter
	once     sync.Once
	response *http.Response
	ready    chan *http.Response
}

func (a *inProcessAnswer) run(h http.Handler, req *http.Request) {
	err := error(io.ErrUnexpectedEOF) // what the caller reads if the handler panics
	defer req.Body.Close()
	defer func() {
		if recover() != nil {
			a.header = http.Header{}
			a.WriteHeader(http.StatusInternalServerError)
		}
		a.pipe.CloseWithError(err)
	}()
	h.ServeHTTP(a, req)
	a.WriteHeader(http.StatusOK)
	err = io.EOF
}

func (a *inProcessAnswer) Header() http.Header { return a.header }

func (a *inProcessAnswer) WriteHeader(status int) {
	if status < 200 {
		return // informational answers are dropped
	}
	a.once.Do(func() {
		a.response.StatusCode, a.response.Header = status, a.header.Clone()
		a.response.Status = fmt.Sprintf("%d %s", status, http.StatusText(status))
		a.ready <- a.response
	})
}

func (a *inProcessAnswer) Write(p []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	n, err := a.pipe.Write(p)
	if errors.Is(err, io.ErrClosedPipe) {
		err = http.ErrAbortHandler
	}
	return n, err
}

// Flush sends the header. It need not flush the body, because every Write reaches the caller at once.
func (a *inProcessAnswer) Flush() { a.WriteHeader(http.StatusOK) }
