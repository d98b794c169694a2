package hook

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"time"

	"github.com/agentmesh/agentmesh/node/client"
)

// Webhook posts each message to a URL of the owner, signed according to Standard Webhooks (AM-73). The URL is trusted:
// any host is allowed, including loopback.
type Webhook struct {
	URL     string
	Secrets []client.WebhookSecret // each one signs, so that a new secret can be rolled out before the old one is removed
	HTTP    *client.HTTP
	Logger  *slog.Logger
}

var _ Handler = Webhook{}

// Handle posts the message until the URL accepts it, under the same webhook-id. An empty answer means that the hook has
// nothing to say; status 202 means that the reply comes later through the owner API.
func (h Webhook) Handle(ctx context.Context, c Call) (Answer, error) {
	body := c.document()
	_, id := c.event()
	target := poster{url: h.URL, http: h.HTTP, log: loggerOr(h.Logger), header: func(now time.Time) http.Header {
		return client.WebhookHeader(id, body, h.Secrets, now)
	}}
	status, output, err := target.post(ctx, body)
	if err != nil {
		return Answer{}, err
	}
	if status == http.StatusAccepted && len(bytes.TrimSpace(output)) == 0 {
		return Answer{Async: true}, nil
	}
	answer, err := parseAnswer(output, c.Message.Intent)
	if err != nil {
		return Answer{}, newError(Malformed, target.name(), err)
	}
	return answer, nil
}

// poster posts to a URL of the owner, and repeats the request after a temporary failure.
type poster struct {
	url    string
	http   *client.HTTP
	header func(now time.Time) http.Header
	log    *slog.Logger
}

// pauses are the pauses between attempts. The message is stored meanwhile, and its sender has got a 202.
var pauses = [...]time.Duration{time.Second, 5 * time.Second, 25 * time.Second}

func (h poster) name() string {
	u, err := url.Parse(h.url)
	if err != nil {
		return "webhook"
	}
	return u.Host
}

// post returns the first 2xx answer.
func (h poster) post(ctx context.Context, body []byte) (status int, said []byte, err error) {
	ctx, cancel := boundedContext(ctx)
	defer cancel()
	for attempt := 0; ; attempt++ {
		status, said, err = h.postOnce(ctx, body)
		again := err != nil && ctx.Err() == nil && !errors.Is(err, client.ErrAnswerTooLarge)
		if err == nil {
			if status >= 200 && status < 300 {
				return status, said, nil
			}
			err = fmt.Errorf("the server answered HTTP %d", status)
			again = status >= 500 || status == http.StatusTooManyRequests || status == http.StatusRequestTimeout
		}
		if !again || attempt == len(pauses) || !pause(ctx, pauses[attempt]) {
			break
		}
		h.log.Info("retry webhook", "hook", h.name(), "attempt", attempt+2, "err", err)
	}
	switch {
	case ctx.Err() != nil:
		return 0, nil, newError(Timeout, h.name(), ctx.Err())
	case errors.Is(err, client.ErrAnswerTooLarge):
		return 0, nil, newError(TooLarge, h.name(), err)
	case status != 0:
		return 0, nil, newError(Crashed, h.name(), err)
	}
	return 0, nil, newError(Unreachable, h.name(), err)
}

func (h poster) postOnce(ctx context.Context, body []byte) (status int, said []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, h.url, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	req.Header = h.header(time.Now())
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	resp, err := h.http.Do(ctx, client.Owner, req)
	if err != nil {
		return 0, nil, err
	}
	said, err = client.ReadAll(resp, maxOutput)
	if err != nil {
		return 0, nil, err
	}
	return resp.StatusCode, said, nil
}
