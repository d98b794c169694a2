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

// httpClient is an HTTP client with one connection, which it keeps open. It uses less processor time than the server
// that it measures. It is not safe for concurrent use.
type httpClient struct {
	base *url.URL
	conn net.Conn
	r    *bufio.Reader
	body []byte // reused by exchange
}

// answer is a response. Body is valid until the next call of [httpClient.exchange].
type answer struct {
	Status int
	Header http.Header
	Body   []byte
}

// checkStatus returns an error unless the response has the status want.
func (a answer) checkStatus(want int) error {
	if a.Status != want {
		return fmt.Errorf("status %d: %.200s", a.Status, a.Body)
	}
	return nil
}

// sendOnce makes a request on a connection of its own. It returns an error unless the response has the given status.
func sendOnce(ctx context.Context, base *url.URL, request []byte, status int) (answer, error) {
	c := httpClient{base: base}
	defer c.close()
	a, err := c.exchange(ctx, request)
	if err == nil {
		err = a.checkStatus(status)
	}
	return a, err
}

// answerTimeout is how long a server may take for one response.
const answerTimeout = 30 * time.Second

// exchange sends a request and reads the response. If a connection fails or ends, the next call opens a new one.
func (c *httpClient) exchange(ctx context.Context, request []byte) (answer, error) {
	if c.conn == nil {
		if err := c.dial(ctx); err != nil {
			return answer{}, err
		}
	}
	a, keep, err := c.exchangeOnce(request)
	if err != nil || !keep {
		err = errors.Join(err, c.close())
	}
	return a, err
}

func (c *httpClient) dial(ctx context.Context) error {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", c.base.Host)
	if err != nil {
		return err
	}
	c.conn, c.r = conn, bufio.NewReader(conn)
	return nil
}

// exchangeOnce works like exchange, on the open connection. keep is false if the server closes the connection.
func (c *httpClient) exchangeOnce(request []byte) (a answer, keep bool, err error) {
	if err := c.conn.SetDeadline(time.Now().Add(answerTimeout)); err != nil {
		return answer{}, false, err
	}
	if _, err := c.conn.Write(request); err != nil {
		return answer{}, false, err
	}
	resp, err := http.ReadResponse(c.r, nil)
	if err != nil {
		return answer{}, false, fmt.Errorf("read answer: %w", err)
	}
	defer resp.Body.Close()
	c.body = c.body[:0]
	for {
		c.body = slices.Grow(c.body, max(512, int(resp.ContentLength)-len(c.body)))
		n, err := resp.Body.Read(c.body[len(c.body):cap(c.body)])
		c.body = c.body[:len(c.body)+n]
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return answer{}, false, fmt.Errorf("read answer: %w", err)
		}
	}
	return answer{resp.StatusCode, resp.Header, c.body}, !resp.Close, nil
}

func (c *httpClient) close() error {
	if c.conn == nil {
		return nil
	}
	err := c.conn.Close()
	c.conn = nil
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
