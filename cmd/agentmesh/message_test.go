package main

import (
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/signing"
)

// TestSignatureWindow: message verify judges an OpenPGP signature at the time of the message as a node judges it
// (AM-20).
func TestSignatureWindow(t *testing.T) {
	at := time.Date(2026, 2, 19, 10, 30, 0, 0, time.UTC)
	want := signing.Window{From: at.Add(-client.DefaultPast), To: at.Add(client.DefaultFuture)}
	if got := signatureWindow(at); got != want {
		t.Errorf("signatureWindow = %v, want %v", got, want)
	}
}
