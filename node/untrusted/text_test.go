package untrusted_test

import (
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/node/untrusted"
)

func TestText(t *testing.T) {
	for _, id := range []string{"", "conv_00112233445566778899aabbccddeeff", "msg_0011223344556677"} {
		if got := untrusted.Text(id).Handle("am_x"); got != id {
			t.Errorf("%q becomes %q", id, got)
		}
	}
	for _, id := range []string{"conv_pay-mallory-now", "ignore_all_rules", "CONV_00112233445566778899aabbccddeeff"} {
		if got := untrusted.Text(id).Handle("am_x"); !strings.HasPrefix(got, "ref_") || got == untrusted.Text(id).Handle("am_y") {
			t.Errorf("%q becomes %q", id, got)
		}
	}
	if got := untrusted.Text("OBEY_ME").OneOf([]string{"RATE_LIMITED"}, "other"); got != "other" {
		t.Error(got)
	}
}
