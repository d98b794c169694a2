package owner

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
)

// maxAnswer bounds an answer that is read as a whole. The caller reads a stream itself.
const maxAnswer = 64 << 20

// ErrNotServed means that the running process does not have the operation, for example because a bridge is not
// configured.
var ErrNotServed = errors.New("the node or directory here does not serve this")

// ErrNoAnswer means that the process cannot be reached, or that the answer is not from the owner API.
var ErrNoAnswer = errors.New("call to the owner API failed")

// errEmptyName refuses a call with an empty id or name in its path, for example from an unset variable of a script.
var errEmptyName = Fault(http.StatusBadRequest, "the id or name is empty", "name the entry")

// Client calls the owner API.
type Client struct {
	HTTP *http.Client // connects to the socket of a process, or to handlers in this process
	Door string       // the name of the calling interface, see [httpapi.DoorHeader]; "" means "api"
}

// Call is a request to the owner API. Out is the type of the answer.
type Call[Out any] struct {
	Method string
	Path   string // below /owner, escaped
	Query  url.Values
	Body   any // sent as JSON, unless it is an [Upload]; nil for none
}

// Upload is the body of a call with headers of its own.
type Upload struct {
	Header http.Header
	Data   []byte
}

// Params returns query parameters from pairs of names and values. It omits empty values.
func Params(pairs ...string) url.Values {
	q := url.Values{}
	for pair := range slices.Chunk(pairs, 2) {
		if pair[1] != "" {
			q.Add(pair[0], pair[1])
		}
	}
	return q
}

// WithQuery returns the call with query parameters.
func (c Call[Out]) WithQuery(query url.Values) Call[Out] {
	c.Query = query
	return c
}

// Do makes a call and returns the answer, whose body the caller closes. If the owner API refuses, the error is a
// *[wire.Error] or [ErrNotServed]. If it does not answer, the error wraps [ErrNoAnswer].
func (c *Client) Do(ctx context.Context, method, path string, query url.Values, body any) (*http.Response, error) {
	if slices.Contains(strings.Split(path, "/"), "") {
		return nil, errEmptyName
	}
	target := "http://localhost/owner/" + path
	if len(query) > 0 {
		target += "?" + query.Encode()
	}
	upload, ok := body.(Upload)
	if body != nil && !ok {
		data, err := httpapi.Encode(body)
		if err != nil {
			return nil, fmt.Errorf("encode request: %w", err)
		}
		upload = Upload{http.Header{"Content-Type": {"application/json"}}, data}
	}
	req, err := http.NewRequestWithContext(ctx, method, target, bytes.NewReader(upload.Data))
	if err != nil {
		return nil, err
	}
	maps.Copy(req.Header, upload.Header)
	if c.Door != "" {
		req.Header.Set(httpapi.DoorHeader, c.Door)
	}
	resp, err := c.HTTP.Do(req)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoAnswer, err)
	}
	if resp.StatusCode >= 300 {
		return nil, refusal(resp)
	}
	return resp, nil
}

// refusal returns the error for an answer with an error status, as [Client.Do] describes it.
func refusal(resp *http.Response) error {
	data, err := client.ReadAll(resp, maxAnswer)
	if err != nil {
		return fmt.Errorf("%w: read the refusal: %w", ErrNoAnswer, err)
	}
	unexpected := fmt.Errorf("%w: it answered %s", ErrNoAnswer, resp.Status)
	v, err := wire.Parse(data)
	if err != nil {
		return unexpected
	}
	e, ok := wire.ParseError(resp.StatusCode, v)
	switch {
	case !ok:
		return unexpected
	case e.Status == http.StatusNotFound && e.Message == wire.ErrRoute.Message:
		return ErrNotServed
	}
	return e
}

// Raw makes a call and returns the body of the answer, which may be empty.
func (c *Client) Raw(ctx context.Context, method, path string, query url.Values, body any) (json.RawMessage, error) {
	resp, err := c.Do(ctx, method, path, query, body)
	if err != nil {
		return nil, err
	}
	data, err := client.ReadAll(resp, maxAnswer)
	if err != nil {
		return nil, fmt.Errorf("%w: read the answer: %w", ErrNoAnswer, err)
	}
	return data, nil
}

// Fetch makes a call and returns the parsed answer.
func Fetch[Out any](ctx context.Context, c *Client, call Call[Out]) (out Out, err error) {
	raw, err := c.Raw(ctx, call.Method, call.Path, call.Query, call.Body)
	if err == nil && len(raw) > 0 {
		err = json.Unmarshal(raw, &out)
	}
	return out, err
}

// ReadEvents returns the events of topics until ctx or the stream ends. When the stream is open, it yields an event
// without a topic; from then on, the reader misses no change. An error is the last element.
func ReadEvents(ctx context.Context, c interface {
	Do(ctx context.Context, method, path string, query url.Values, body any) (*http.Response, error)
}, topics ...string) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		path := strings.TrimPrefix(StreamEvents.Path, "/")
		resp, err := c.Do(ctx, StreamEvents.Method, path, url.Values{"topics": {strings.Join(topics, ",")}}, nil)
		if err != nil {
			if ctx.Err() == nil {
				yield(Event{}, err)
			}
			return
		}
		defer resp.Body.Close()
		if !yield(Event{}, nil) {
			return
		}
		lines := bufio.NewScanner(resp.Body)
		for lines.Scan() {
			data, ok := strings.CutPrefix(lines.Text(), "data:")
			var event Event
			if ok && json.Unmarshal([]byte(data), &event) == nil && !yield(event, nil) {
				return
			}
		}
	}
}
