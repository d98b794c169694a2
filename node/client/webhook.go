package client

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// WebhookSecret signs webhooks. Its text is "whsec_" and the base64 of 24 to 64 bytes. It prints as [redacted].
type WebhookSecret struct{ key []byte }

// ParseWebhookSecrets parses a list of secrets that are separated by white space.
func ParseWebhookSecrets(text string) (secrets []WebhookSecret, err error) {
	for word := range strings.FieldsSeq(text) {
		secret, err := ParseWebhookSecret(word)
		if err != nil {
			return nil, err
		}
		secrets = append(secrets, secret)
	}
	return secrets, nil
}

// ParseWebhookSecret parses a secret in the format of Standard Webhooks.
func ParseWebhookSecret(text string) (WebhookSecret, error) {
	encoded, ok := strings.CutPrefix(strings.TrimSpace(text), "whsec_")
	key, err := base64.StdEncoding.Strict().DecodeString(encoded)
	if !ok || err != nil || len(key) < 24 || len(key) > 64 {
		return WebhookSecret{}, errors.New("a webhook secret must be whsec_ followed by 24 to 64 bytes in base64")
	}
	return WebhookSecret{key}, nil
}

func (WebhookSecret) String() string             { return redacted }
func (WebhookSecret) LogValue() slog.Value       { return slog.StringValue(redacted) }
func (WebhookSecret) Format(s fmt.State, _ rune) { fmt.Fprint(s, redacted) }

// Sign returns "v1," and the base64 HMAC-SHA-256 of id.timestamp.body.
func (s WebhookSecret) Sign(id, timestamp string, body []byte) string {
	mac := hmac.New(sha256.New, s.key)
	mac.Write([]byte(id + "." + timestamp + "."))
	mac.Write(body)
	return "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

// WebhookHeader returns the header of a webhook under the Standard Webhooks. It has one signature for each secret, so
// that an operator can introduce a new secret before removing the old one.
func WebhookHeader(id string, body []byte, secrets []WebhookSecret, now time.Time) http.Header {
	stamp := strconv.FormatInt(now.Unix(), 10)
	signatures := make([]string, len(secrets))
	for i, s := range secrets {
		signatures[i] = s.Sign(id, stamp, body)
	}
	head := http.Header{}
	head.Set("Webhook-Id", id)
	head.Set("Webhook-Timestamp", stamp)
	if len(signatures) > 0 {
		head.Set("Webhook-Signature", strings.Join(signatures, " "))
	}
	return head
}
