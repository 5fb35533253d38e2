const TOY_TAB = {
 "rows": [
  {
   "typed": "Of course - it's",
   "words": [
    "Lindsay",
    "Corrigan."
   ],
   "people": 1
  },
  {
   "typed": "Brad",
   "words": [
    "Fennessey."
   ],
   "people": 1
  },
  {
   "typed": "This is Larry",
   "words": [
    "Donaldson."
   ],
   "people": 1
  },
  {
   "typed": "This is Austin",
   "words": [
    "Hutchison."
   ],
   "people": 1
  },
  {
   "typed": "The name is",
   "words": [
    "Jacob",
    "Devally."
   ],
   "people": 0
  },
  {
   "typed": "The name is Tanya",
   "words": [
    "Apt.",
    "7042."
   ],
   "people": 0
  }
 ],
 "made": "LSTM of 64 units, 100 simulated dialogues, 40 epochs, CPU, 2026-11-27"
};
