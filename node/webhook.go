package node

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

// WebhookSecret signs webhooks; see [client.WebhookSecret].
type WebhookSecret = client.WebhookSecret

// ParseWebhookSecret reads a secret as the Standard Webhooks write it.
func ParseWebhookSecret(text string) (WebhookSecret, error) { return client.ParseWebhookSecret(text) }

// WebhookHook posts each message to a URL of the owner's, signed as the Standard Webhooks have it (AM-73). The URL is
// trusted: it may be anywhere, loopback included.
type WebhookHook struct {
	URL     string
	Secrets []WebhookSecret // each signs, so that a new one can be rolled out before the old one goes
	HTTP    *client.HTTP
	Logger  *slog.Logger
}

var _ Handler = WebhookHook{}

// Handle posts the message until the URL takes it, under the same webhook-id. An empty answer is nothing to say; 202
// says that the reply comes later through the owner API.
func (h WebhookHook) Handle(ctx context.Context, c Call) (HookAnswer, error) {
	body := c.document()
	_, id := c.event()
	caller := hookCaller{url: h.URL, http: h.HTTP, log: loggerOr(h.Logger), header: func(now time.Time) http.Header {
		return client.WebhookHeader(id, body, h.Secrets, now)
	}}
	status, said, err := caller.post(ctx, body)
	if err != nil {
		return HookAnswer{}, err
	}
	if status == http.StatusAccepted && len(bytes.TrimSpace(said)) == 0 {
		return HookAnswer{Async: true}, nil
	}
	answer, err := parseAnswer(said, c.Message.Intent)
	if err != nil {
		return HookAnswer{}, hookFailed(HookRubbish, caller.name(), err)
	}
	return answer, nil
}

// hookCaller posts to a URL of the owner's, and again where that may help.
type hookCaller struct {
	url    string
	http   *client.HTTP
	header func(now time.Time) http.Header
	log    *slog.Logger
}

// hookPauses are the waits between attempts. The message is safe meanwhile, and its sender has a 202 by then.
var hookPauses = [...]time.Duration{time.Second, 5 * time.Second, 25 * time.Second}

func (h hookCaller) name() string {
	u, err := url.Parse(h.url)
	if err != nil {
		return "webhook"
	}
	return u.Host
}

// post returns a 2xx answer.
func (h hookCaller) post(ctx context.Context, body []byte) (status int, said []byte, err error) {
	ctx, cancel := hookContext(ctx)
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
		if !again || attempt == len(hookPauses) || !pause(ctx, hookPauses[attempt]) {
			break
		}
		h.log.Info("webhook again", "hook", h.name(), "attempt", attempt+2, "err", err)
	}
	switch {
	case ctx.Err() != nil:
		return 0, nil, hookFailed(HookTimeout, h.name(), ctx.Err())
	case errors.Is(err, client.ErrAnswerTooLarge):
		return 0, nil, hookFailed(HookTooLarge, h.name(), err)
	case status != 0:
		return 0, nil, hookFailed(HookCrashed, h.name(), err)
	}
	return 0, nil, hookFailed(HookUnreachable, h.name(), err)
}

func (h hookCaller) once(ctx context.Context, body []byte) (status int, said []byte, err error) {
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
	said, err = client.ReadAll(resp, maxHookOutput)
	if err != nil {
		return 0, nil, err
	}
	return resp.StatusCode, said, nil
}
