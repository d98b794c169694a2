package main

import (
	"github.com/agentmesh/agentmesh/cmd/internal/config"
	"github.com/agentmesh/agentmesh/cmd/internal/datadir"
)

// What the manual says and the grammar does not.

var manDescription = []string{
	"agentmesh runs an AgentMesh directory, where personal agents are found, and a node, which sends and receives " +
		"signed messages for one owner's agent. It speaks AgentMesh 0.1.0-draft.",
	"agentmesh serve is the process that runs. Nearly every other command is a question to it, over a Unix socket in the data " +
		"directory; where no serve runs, the command opens the data directory itself and answers in the same way.",
	"Results go to standard output, everything else to standard error. With --json a result is one JSON document. Text that " +
		"others wrote is cleaned of what a terminal would act on.",
}

// named is a name with its meaning.
type named struct{ name, meaning string }

var manEnvironment = []named{
	{"AGENTMESH_DATA", "The data directory; the flag --data beats it."},
	{"AGENTMESH_CONFIG", "The configuration file; the flag --config beats it."},
	{"AGENTMESH_KEY", "Any key of the configuration, in capitals and with underscores for dots: AGENTMESH_ACCESS_MODE is access.mode. " +
		"A flag beats it, and it beats the file."},
	{config.EnvPassphrase, "Passphrase of an encrypted signing key or backup. A file is safer."},
	{config.EnvPassphraseFile, "File that holds the passphrase."},
	{"XDG_RUNTIME_DIR", "Where the owner socket goes when the path of the data directory is too long for one."},
	{"HTTP_PROXY, HTTPS_PROXY", "Are not used: every outgoing connection is checked at the address it goes to."},
}

var manFiles = []named{
	{datadir.FileConfig, "The configuration, where there is one. docs/config.md describes every key."},
	{datadir.FileKey, "The private signing key: whoever has it is the agent. Mode 0600."},
	{datadir.FileAge, "The age identity, which opens sealed messages; its recipient stands on the card. Mode 0600."},
	{datadir.FileCredential, "The secret from which the bearers for directories are derived. Mode 0600."},
	{datadir.FileCard, "The card as it was last published."},
	{datadir.FileDatabase, "Messages, conversations, decisions, and the cards of the directory. Mode 0600."},
	{datadir.FileDatabase + ".index", "A snapshot of the card index, made anew where it is missing."},
	{datadir.FileMoltSpeakKey, "The signing key of the node as a MoltSpeak agent. Mode 0600."},
	{datadir.FileMoltSpeakBox, "Its encryption key. Mode 0600."},
	{datadir.DirACME + "/", "The account key at the certificate authority, and the certificate with its key, where the process ends TLS. Mode 0600."},
	{datadir.FileRetired + "/", "Signing keys from before a rotation."},
	{datadir.FilePID, "The process that has the database open."},
}

// example is a command with what it is for. Each is parsed by a test.
type example struct{ about, command string }

// manExamples are by command; those of the first page have none.
var manExamples = map[string][]example{
	"": {
		{"See the whole flow on this machine, with three processes:", "agentmesh demo"},
		{"Run directory and node on 127.0.0.1:3141, making an agent on the first run:", "agentmesh serve"},
		{"Find somebody and write:", "agentmesh discover sarah --capability scheduling\nagentmesh send am_2xk 'Coffee on Friday?' --wait"},
	},
	"init":     {{"Make an agent whose key file needs a passphrase at every start:", "agentmesh init --name \"Sarah's agent\" --encrypt"}},
	"serve":    {{"A node alone, listed in somebody else's directory:", "agentmesh serve --roles node --directory https://mesh.example.org/v1"}, {"On the internet, with a certificate from Let's Encrypt, whose terms are accepted by it:", "agentmesh serve --tls agent.example.org"}, {"On the internet, behind a reverse proxy:", "agentmesh serve --public-url https://agent.example.org --listen 127.0.0.1:3141"}},
	"audit":    {{"What you decided this week:", "agentmesh audit --since 7d --kind decided"}, {"Export the log, and check an export elsewhere:", "agentmesh audit --json\nagentmesh verify audit.jsonl"}},
	"page":     {{"Decide, read and answer in a browser on this machine:", "agentmesh page"}},
	"status":   {{"Where the card is listed and what waits:", "agentmesh status"}},
	"doctor":   {{"What is wrong, from modes to the clock, and what to do:", "agentmesh doctor"}},
	"demo":     {{"Leave directory and nodes running for curl:", "agentmesh demo --keep"}},
	"discover": {{"Agents that can schedule and speak of coffee:", "agentmesh discover coffee --capability scheduling"}},
	"card":     {{"The agent's own card:", "agentmesh card show"}, {"Check a card before it is published:", "agentmesh card validate card.json"}},
	"send": {
		{"A text, waiting for the answer:", "agentmesh send sarah 'Coffee on Friday?' --wait"},
		{"A payload from a file:", "agentmesh send sarah --intent mesh.schedule @propose.json"},
		{"So that nobody on the way can read it:", "agentmesh send sarah 'The code of the door is 4711' --seal"},
	},
	"reply":         {{"Accept what was proposed:", "agentmesh reply conv_4f1 --action accept --wait"}, {"Answer what inbox wait printed, if nobody else has:", "agentmesh reply in_0199 'Gladly.'"}},
	"calendar":      {{"Cancel an event that was agreed:", "agentmesh calendar cancel 4f1c --reason 'a fever'"}},
	"inbox":         {{"Print what comes in, one JSON document a line:", "agentmesh inbox --follow --json"}},
	"approvals":     {{"Look at what waits, and let the sender in for good:", "agentmesh approvals\nagentmesh approvals approve ask_7c2 --always"}},
	"conversations": {{"Read a transcript:", "agentmesh conversations show conv_4f1"}},
	"peers":         {{"Take a card by your word, under a short name:", "agentmesh peers add https://agent.example.org/agentmesh --alias sarah"}, {"Keep an agent out:", "agentmesh peers block am_2xk"}},
	"mew": {
		{"Watch a space, and say something in it:", "agentmesh mew tail --space lab\nagentmesh mew chat 'good morning' --space lab"},
		{"Let the space behind a link see a conversation:", "agentmesh mew bring conv_2xk --link lab"},
	},
	"mess": {
		{"Ask, and see what became of it:", "agentmesh mess request 'what is in the fridge?' --id fridge\nagentmesh mess status fridge"},
		{"Do what somebody asks for, with a photo:", "agentmesh mess list --status pending\nagentmesh mess claim 2026-01-31-001\nagentmesh mess complete 2026-01-31-001 'milk and eggs' --photo fridge.jpg"},
		{"Get a picture that a thread names by its address:", "agentmesh mess fetch 2026-01-31-001 https://example.com/fridge.jpg --out fridge.jpg"},
	},
	"keys":       {{"A new signing key, vouched for by the old one:", "agentmesh keys rotate"}},
	"token":      {{"A code with which one card can be registered:", "agentmesh token create --label 'for Sarah' --days 14"}},
	"config":     {{"What is wrong with the configuration, and which guards it opens:", "agentmesh config check"}},
	"check":      {{"Verify keys, database and every transcript, while nothing serves:", "agentmesh check"}},
	"backup":     {{"Straight into a file:", "agentmesh backup monday.zip"}, {"Encrypted to an age key that is elsewhere:", "agentmesh backup monday.age --recipient age1zvkyg2lqzraa2lnjvqej32nkuu0ues2s82hzrye869xeexvn73equnujwj"}},
	"restore":    {{"Into a new data directory:", "agentmesh --data restored restore monday.zip"}, {"An encrypted archive in place of what is there, which is kept:", "agentmesh restore --replace --identity key.txt monday.age"}},
	"message":    {{"The bytes that a signature covers:", "agentmesh message canonical message.json"}, {"Is this signature good?", "agentmesh message verify --public-key key.pub signed.json"}},
	"completion": {{"For this shell (source the output to try it):", "agentmesh completion bash"}},
	"man":        {{"All pages, for example to install them:", "agentmesh man --dir man1"}},
}
