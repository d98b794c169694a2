package main

import (
	"context"
	"fmt"

	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
	"github.com/agentmesh/agentmesh/directory/site"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/owner/phone"
)

type pageCmd struct {
	Phone        bool `help:"Set up a phone, which opens the page at public_url with a passkey. Needs owner_api.phone." xor:"what"`
	ForgetPhones bool `help:"Forget the passkeys of all phones, and end their sessions." xor:"what"`
}

func (c *pageCmd) Run(ctx context.Context, a *app) error {
	switch {
	case c.Phone:
		return callAndShow(ctx, a, daemon.SetUpPhone.With(owner.None{}), a.showSetup)
	case c.ForgetPhones:
		return callAndShow(ctx, a, daemon.ForgetPhones.With(owner.None{}), func(owner.None) { a.Print("forgotten; set up each phone again with: agentmesh page --phone") })
	}
	return callAndShow(ctx, a, postCall[httpapi.SignIn]("sign-in", nil), func(in httpapi.SignIn) {
		a.Print("%s", in.Link())
		if terminal.IsTerminal(a.Out) {
			terminal.OpenBrowser(in.URL)
		}
		a.Note("open the address in a browser on this machine and sign in")
		a.Note("or open %s and type the code %s, which is valid once, until %s", in.URL, in.Code, in.Expires.Local().Format("15:04:05"))
	})
}

// showSetup prints an address that sets up a phone, and its QR code on a terminal.
func (a *app) showSetup(in phone.Setup) {
	a.Print("%s", in.URL)
	if code := site.NewQR(in.URL); code != nil && terminal.IsTerminal(a.Out) {
		fmt.Fprint(a.Out, code.Text)
	}
	a.Note("open the address with the phone before %s; it works once", in.Expires.Local().Format("15:04:05"))
	a.Note("%d phones are set up; agentmesh page --forget-phones forgets all of them", in.Phones)
}
