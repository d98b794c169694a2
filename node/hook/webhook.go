package hook

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"mime"
	"net/http"
	"net/url"
	"time"

	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/waiting"
)

// Webhook posts each message to a URL that the owner configured, signed according to Standard Webhooks (AM-73). The URL is trusted:
// any host is allowed, including loopback.
type Webhook struct {
	URL     string
	Secrets []client.WebhookSecret // all of them sign
	HTTP    *client.HTTP
	Logger  *slog.Logger
}

var _ Handler = Webhook{}

// Handle posts the message. After a temporary failure it posts the message once more under the same webhook-id. After
// a second temporary failure the fault is Unreachable, and the node tries again later. An empty answer means that the hook has
// nothing to say, but with status 202 it means that the reply will come later through the owner API. An answer with
// status 200 and the type application/x-ndjson is a stream; Handle does not repeat the request once a stream has
// begun.
func (h Webhook) Handle(ctx context.Context, c Call) (Answer, error) {
	body := c.document()
	_, id := c.event()
	stream := &answerReader{intent: c.Message.Intent, progress: c.Progress, tap: c.tap}
	target := poster{url: h.URL, stream: stream, http: h.HTTP, log: loggerOr(h.Logger), header: func(now time.Time) http.Header {
		return client.WebhookHeader(id, body, h.Secrets, now)
	}}
	status, output, err := target.post(ctx, body)
	if err != nil {
		return Answer{}, err
	}
	if status == http.StatusAccepted && len(bytes.TrimSpace(output)) == 0 {
		return Answer{Async: true}, nil
	}
	if !stream.isStream {
		_, _ = stream.Write(output) // finish returns the error
	}
	answer, err := stream.finish()
	if err != nil {
		return Answer{}, newError(faultOf(err, Malformed), target.name(), err)
	}
	return answer, nil
}

// Ask implements [Asker].
func (h Webhook) Ask(ctx context.Context, q Question) ([]byte, error) {
	target := poster{url: h.URL, http: h.HTTP, log: loggerOr(h.Logger), header: func(now time.Time) http.Header {
		return client.WebhookHeader(q.ID, q.Document, h.Secrets, now)
	}}
	_, output, err := target.post(ctx, q.Document)
	return output, err
}

// poster posts to a URL that the owner configured, and repeats the request after a temporary failure.
type poster struct {
	url    string
	http   *client.HTTP
	header func(now time.Time) http.Header
	log    *slog.Logger
	stream *answerReader // gets the body of an answer that is a stream; may be nil
}

// repeatAfter is the pause before the second attempt.
const repeatAfter = time.Second

// name returns the host of the URL.
func (h poster) name() string {
	u, err := url.Parse(h.url)
	if err != nil {
		return "webhook"
	}
	return u.Host
}

// post returns the status and body of the first 2xx answer. Its error is a *[Error].
func (h poster) post(ctx context.Context, body []byte) (status int, output []byte, err error) {
	ctx, cancel := boundedContext(ctx)
	defer cancel()
	temporary := false
	for attempt := 1; ; attempt++ {
		status, output, err = h.postOnce(ctx, body)
		// If there is a status as well as an error, a stream broke off, and is not repeated.
		temporary = err != nil && status == 0 && ctx.Err() == nil && !errors.Is(err, client.ErrAnswerTooLarge)
		if err == nil {
			if status >= 200 && status < 300 {
				return status, output, nil
			}
			err = fmt.Errorf("the server answered HTTP %d", status)
			temporary = status >= 500 || status == http.StatusTooManyRequests || status == http.StatusRequestTimeout
		}
		if !temporary || attempt == 2 || !waiting.Pause(ctx, repeatAfter) {
			break
		}
		h.log.Info("retry webhook", "hook", h.name(), "err", err)
	}
	switch {
	case ctx.Err() != nil:
		return 0, nil, newError(Timeout, h.name(), ctx.Err())
	case errors.Is(err, client.ErrAnswerTooLarge):
		return 0, nil, newError(TooLarge, h.name(), err)
	case !temporary:
		return 0, nil, newError(Crashed, h.name(), err)
	}
	return 0, nil, newError(Unreachable, h.name(), err)
}

// streamType is the media type of an answer that is a stream: one JSON object on each line.
const streamType = "application/x-ndjson"

// postOnce makes one request. A response with an error status is not an error. If a stream breaks off, postOnce
// returns the status and an error.
func (h poster) postOnce(ctx context.Context, body []byte) (status int, output []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, h.url, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	req.Header = h.header(time.Now())
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	if h.stream != nil {
		req.Header.Set("Accept", "application/json, "+streamType)
	}
	resp, err := h.http.Do(ctx, client.Owner, req)
	if err != nil {
		return 0, nil, err
	}
	mediaType, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if h.stream != nil && mediaType == streamType && resp.StatusCode == http.StatusOK {
		h.stream.isStream = true
		return resp.StatusCode, nil, h.stream.readFrom(resp.Body)
	}
	output, err = client.ReadAll(resp, maxOutput)
	if err != nil {
		return 0, nil, err
	}
	return resp.StatusCode, output, nil
}
