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

// Webhook posts each message to a URL of the owner's, signed as the Standard Webhooks have it (AM-73). The URL is
// trusted: it may be anywhere, loopback included.
type Webhook struct {
	URL     string
	Secrets []client.WebhookSecret // each signs, so that a new one can be rolled out before the old one goes
	HTTP    *client.HTTP
	Logger  *slog.Logger
}

var _ Handler = Webhook{}

// Handle posts the message until the URL takes it, under the same webhook-id. An empty answer is nothing to say; 202
// says that the reply comes later through the owner API.
func (h Webhook) Handle(ctx context.Context, c Call) (Answer, error) {
	body := c.document()
	_, id := c.event()
	target := caller{url: h.URL, http: h.HTTP, log: loggerOr(h.Logger), header: func(now time.Time) http.Header {
		return client.WebhookHeader(id, body, h.Secrets, now)
	}}
	status, said, err := target.post(ctx, body)
	if err != nil {
		return Answer{}, err
	}
	if status == http.StatusAccepted && len(bytes.TrimSpace(said)) == 0 {
		return Answer{Async: true}, nil
	}
	answer, err := parseAnswer(said, c.Message.Intent)
	if err != nil {
		return Answer{}, failed(Malformed, target.name(), err)
	}
	return answer, nil
}

// caller posts to a URL of the owner's, and again where that may help.
type caller struct {
	url    string
	http   *client.HTTP
	header func(now time.Time) http.Header
	log    *slog.Logger
}

// pauses are the waits between attempts. The message is safe meanwhile, and its sender has a 202 by then.
var pauses = [...]time.Duration{time.Second, 5 * time.Second, 25 * time.Second}

func (h caller) name() string {
	u, err := url.Parse(h.url)
	if err != nil {
		return "webhook"
	}
	return u.Host
}

// post returns a 2xx answer.
func (h caller) post(ctx context.Context, body []byte) (status int, said []byte, err error) {
	ctx, cancel := boundedContext(ctx)
	defer cancel()
	for attempt := 0; ; attempt++ {
		status, said, err = h.once(ctx, body)
		again := err != nil && ctx.Err() == nil && !errors.Is(err, client.ErrAnswerTooLarge)
		if err == nil {
			if status >= 200 && status < 300 {
				return status, said, nil
			}
			err = fmt.Errorf("it answered HTTP %d", status)
			again = status >= 500 || status == http.StatusTooManyRequests || status == http.StatusRequestTimeout
		}
		if !again || attempt == len(pauses) || !pause(ctx, pauses[attempt]) {
			break
		}
		h.log.Info("webhook again", "hook", h.name(), "attempt", attempt+2, "err", err)
	}
	switch {
	case ctx.Err() != nil:
		return 0, nil, failed(Timeout, h.name(), ctx.Err())
	case errors.Is(err, client.ErrAnswerTooLarge):
		return 0, nil, failed(TooLarge, h.name(), err)
	case status != 0:
		return 0, nil, failed(Crashed, h.name(), err)
	}
	return 0, nil, failed(Unreachable, h.name(), err)
}

func (h caller) once(ctx context.Context, body []byte) (status int, said []byte, err error) {
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
