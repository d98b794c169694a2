package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"
)

// link is an HTTP client with one connection, which it keeps open. It uses less processor time than the server that it
// measures. It is not safe for concurrent use.
type link struct {
	base *url.URL
	conn net.Conn
	r    *bufio.Reader
	body []byte // reused by exchange
}

// answer is a response. Body is valid until the next call of [link.exchange].
type answer struct {
	Status int
	Header http.Header
	Body   []byte
}

// checkStatus returns an error if the response has another status.
func (a answer) checkStatus(want int) error {
	if a.Status != want {
		return fmt.Errorf("status %d: %.200s", a.Status, a.Body)
	}
	return nil
}

// sendOnce makes a request on a connection of its own. It returns an error if the response does not have this status.
func sendOnce(ctx context.Context, base *url.URL, request []byte, status int) (answer, error) {
	l := link{base: base}
	defer l.close()
	a, err := l.exchange(ctx, request)
	if err == nil {
		err = a.checkStatus(status)
	}
	return a, err
}

// answerTimeout is how long a server may take for one response.
const answerTimeout = 30 * time.Second

// exchange sends a request and reads the response. If a connection fails or ends, the next call opens a new one.
func (l *link) exchange(ctx context.Context, request []byte) (answer, error) {
	if l.conn == nil {
		if err := l.dial(ctx); err != nil {
			return answer{}, err
		}
	}
	a, keep, err := l.exchangeOnce(request)
	if err != nil || !keep {
		err = errors.Join(err, l.close())
	}
	return a, err
}

func (l *link) dial(ctx context.Context) error {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", l.base.Host)
	if err != nil {
		return err
	}
	l.conn, l.r = conn, bufio.NewReader(conn)
	return nil
}

// exchangeOnce works like exchange, on the open connection. keep is false if the server closes the connection.
func (l *link) exchangeOnce(request []byte) (a answer, keep bool, err error) {
	if err := l.conn.SetDeadline(time.Now().Add(answerTimeout)); err != nil {
		return answer{}, false, err
	}
	if _, err := l.conn.Write(request); err != nil {
		return answer{}, false, err
	}
	resp, err := http.ReadResponse(l.r, nil)
	if err != nil {
		return answer{}, false, fmt.Errorf("read answer: %w", err)
	}
	defer resp.Body.Close()
	l.body = l.body[:0]
	for {
		l.body = slices.Grow(l.body, max(512, int(resp.ContentLength)-len(l.body)))
		n, err := resp.Body.Read(l.body[len(l.body):cap(l.body)])
		l.body = l.body[:len(l.body)+n]
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return answer{}, false, fmt.Errorf("read answer: %w", err)
		}
	}
	return answer{resp.StatusCode, resp.Header, l.body}, !resp.Close, nil
}

func (l *link) close() error {
	if l.conn == nil {
		return nil
	}
	err := l.conn.Close()
	l.conn = nil
	return err
}

// request returns the bytes of an HTTP/1.1 request. target is path and query; headers alternates names and values.
func request(method string, base *url.URL, target string, body []byte, headers ...string) []byte {
	b := make([]byte, 0, 256+len(body))
	b = append(b, method+" "+target+" HTTP/1.1\r\nHost: "+base.Host+"\r\nUser-Agent: meshbench\r\n"...)
	for i := 0; i < len(headers); i += 2 {
		b = append(b, headers[i]+": "+headers[i+1]+"\r\n"...)
	}
	if body != nil {
		b = append(b, "Content-Type: application/json\r\nContent-Length: "+strconv.Itoa(len(body))+"\r\n"...)
	}
	return append(append(b, "\r\n"...), body...)
}
