package node

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/client"
)

// WebhookSecret signs webhooks: "whsec_" and the base64 of 24 to 64 bytes. It prints as [redacted].
type WebhookSecret struct{ key []byte }

// ParseWebhookSecret reads a secret as the Standard Webhooks write it.
func ParseWebhookSecret(text string) (WebhookSecret, error) {
	encoded, ok := strings.CutPrefix(strings.TrimSpace(text), "whsec_")
	key, err := base64.StdEncoding.Strict().DecodeString(encoded)
	if !ok || err != nil || len(key) < 24 || len(key) > 64 {
		return WebhookSecret{}, errors.New("a webhook secret is whsec_ and the base64 of 24 to 64 bytes")
	}
	return WebhookSecret{key}, nil
}

func (WebhookSecret) String() string             { return "[redacted]" }
func (WebhookSecret) GoString() string           { return "[redacted]" }
func (WebhookSecret) LogValue() slog.Value       { return slog.StringValue("[redacted]") }
func (WebhookSecret) Format(s fmt.State, _ rune) { fmt.Fprint(s, "[redacted]") }

// sign returns "v1," and the base64 HMAC-SHA-256 of id.timestamp.body.
func (s WebhookSecret) sign(id, timestamp string, body []byte) string {
	mac := hmac.New(sha256.New, s.key)
	mac.Write([]byte(id + "." + timestamp + "."))
	mac.Write(body)
	return "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

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
	id := string(c.Message.ID)
	caller := hookCaller{url: h.URL, http: h.HTTP, log: loggerOr(h.Logger), header: func(now time.Time) http.Header {
		stamp := strconv.FormatInt(now.Unix(), 10)
		signatures := make([]string, len(h.Secrets))
		for i, s := range h.Secrets {
			signatures[i] = s.sign(id, stamp, body)
		}
		head := http.Header{}
		head.Set("Webhook-Id", id)
		head.Set("Webhook-Timestamp", stamp)
		head.Set("Webhook-Signature", strings.Join(signatures, " "))
		return head
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
