package signing_test

import (
	"fmt"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
)

// Example signs a message and checks it as its recipient does: with the key of the sender's card, over the tree as
// received.
func Example() {
	private := signing.NewEd25519FromSeed(make([]byte, 32))
	card := private.PublicText() // the sender publishes this

	draft := wire.Obj(wire.Member{Key: "to", Value: wire.Text("am_sarah")}, wire.Member{Key: "from", Value: wire.Text("am_chris")})
	signed, err := private.SignValue(draft)
	if err != nil {
		fmt.Println(err)
		return
	}

	received, err := wire.ParseObject(signed.JSON())
	if err != nil {
		fmt.Println(err)
		return
	}
	key, err := signing.ParsePublicKey(card)
	if err != nil {
		fmt.Println(err)
		return
	}
	verified, err := key.VerifyValue(received.Without("signature"), received.GetStr("signature"), signing.AnyTime(), time.Now())
	fmt.Printf("%s %s %v\n", verified.Form, verified.Canonical, err)
	// Output: jcs {"from":"am_chris","to":"am_sarah"} <nil>
}
