package hook

import (
	"testing"

	"github.com/agentmesh/agentmesh/node/client"
)

// TestWebhookVector checks the example of the Standard Webhooks specification.
func TestWebhookVector(t *testing.T) {
	secret, err := client.ParseWebhookSecret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	if err != nil {
		t.Fatal(err)
	}
	const want = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
	if got := secret.Sign("msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", []byte(`{"test": 2432232314}`)); got != want {
		t.Errorf("signature = %s, want %s", got, want)
	}
}
